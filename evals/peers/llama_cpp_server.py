"""Run the server of the package xllamacpp with options of `llama-server`. It ends when its standard input ends."""

import argparse
import sys

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(prog="llama_cpp_server", description=__doc__)
    parser.add_argument("--model", required=True)
    for name in ("--port", "--threads", "--parallel", "--ctx-size", "--cache-reuse"):
        parser.add_argument(name, required=True, type=int)
    parser.add_argument("--api-key", help="API key that clients must send")
    given = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.port = given.port
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    params.n_parallel = given.parallel
    params.n_ctx = given.ctx_size
    params.n_cache_reuse = given.cache_reuse
    params.api_keys = [given.api_key] if given.api_key else []
    server = xllamacpp.Server(params)
    sys.stdin.buffer.read()
    del server


if __name__ == "__main__":
    main()
