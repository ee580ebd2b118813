"""The Hugging Face face over stand-ins of the MoE blocks of transformers. What needs no torch is in hf_face_test."""

from __future__ import annotations

import sys
import unittest

SKIPPED = 77  # What ctest takes for a skipped test.
try:
    import hf_standins
    from hf_cases import Cases
except ImportError as missing:
    print(f"SKIPPED: {missing}; tests/run.sh --peers has an environment with torch")
    sys.exit(SKIPPED)


class StandinTest(Cases):
    models = hf_standins.MODELS
    graphs = 1


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    """Without `Cases` itself, which has no models."""
    return loader.loadTestsFromTestCase(StandinTest)


if __name__ == "__main__":
    unittest.main()
