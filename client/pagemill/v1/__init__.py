"""The wire contract as generated stubs: messages and service stubs of every file, importable from here."""

from pagemill.v1.admin_pb2 import *  # noqa: F403
from pagemill.v1.admin_pb2_grpc import *  # noqa: F403
from pagemill.v1.generation_pb2 import *  # noqa: F403
from pagemill.v1.generation_pb2_grpc import *  # noqa: F403
from pagemill.v1.internal_pb2 import *  # noqa: F403
from pagemill.v1.model_pb2 import *  # noqa: F403
from pagemill.v1.replica_pb2 import *  # noqa: F403
from pagemill.v1.replica_pb2_grpc import *  # noqa: F403
