"""The replica's front process: gRPC, text, the ledger of admitted blocks. It never imports torch or numba."""
