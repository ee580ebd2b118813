"""Runs hf_test with each model family that this version of transformers has. If all tests passed with all families,
records a row of the table."""

from __future__ import annotations

import sys
import unittest

import hf_models
import hf_test
import transformers
from common.support import passed

result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromModule(hf_test))
if not result.wasSuccessful() or result.skipped:
    sys.exit(f"nothing is noted: skipped were {result.skipped}")
passed("transformers", transformers.__version__, ", ".join(hf_models.MODELS))
