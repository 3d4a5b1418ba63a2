"""How GenerationService is registered: Generate answers raw bytes, so that the relay can forward frames unchanged."""

from __future__ import annotations

from typing import Any

import grpc

from pagemill.v1 import generation_pb2 as pb
from pagemill_router.servicer.generation import GenerationService

SERVICE = "pagemill.v1.GenerationService"


def generation_handler(service: GenerationService) -> grpc.GenericRpcHandler:
    """All methods of the service."""

    def unary(method: Any, request: Any, response: Any) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.unary_unary_rpc_method_handler(
            method, request_deserializer=request.FromString, response_serializer=response.SerializeToString
        )

    generate: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
        service.generate,
        request_deserializer=pb.GenerateRequest.FromString,
        response_serializer=None,
    )
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Generate": generate,
            "GenerateText": unary(service.generate_text, pb.GenerateTextRequest, pb.GenerateTextResponse),
            "Tokenize": unary(service.tokenize, pb.TokenizeRequest, pb.TokenizeResponse),
            "Detokenize": unary(service.detokenize, pb.DetokenizeRequest, pb.DetokenizeResponse),
            "ListModels": unary(service.list_models, pb.ListModelsRequest, pb.ListModelsResponse),
            "GetModel": unary(service.get_model, pb.GetModelRequest, pb.GetModelResponse),
        },
    )
