"""A server that calls CTranslate2 separately for each request: `one_call_server.py EXPORT KEY=VALUE...`.

LibreTranslate and most small servers work like this. Settings: beam_size, compute_type, inter_threads.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import ctranslate2
import sentencepiece


class Server(ThreadingHTTPServer):
    """A server with a thread per connection."""

    request_queue_size = 512


def main(export: str, *settings: str) -> None:
    """Serve until the process is killed."""
    options = dict(setting.split("=", 1) for setting in settings)
    folder = Path(export)
    translator = ctranslate2.Translator(
        export,
        compute_type=options["compute_type"],
        inter_threads=int(options["inter_threads"]),
        intra_threads=1,
    )
    joint = folder / "tokenizer.model"
    encoder, decoder = (
        sentencepiece.SentencePieceProcessor(
            model_file=str(joint if joint.exists() else folder / f"tokenizer.{side}.model")
        )
        for side in ("src", "tgt")
    )

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # head and body of a response in one packet

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            pieces = encoder.encode(request["q"], out_type=str)
            (result,) = translator.translate_batch([pieces], beam_size=int(options["beam_size"]), length_penalty=1.0)
            body = json.dumps({"translatedText": decoder.decode(result.hypotheses[0])}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = Server(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"serving on http://127.0.0.1:{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
