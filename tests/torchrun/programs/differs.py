"""Tests like torch's: alike with and without taskd, failing anyway, differing, and never run."""

import os
import unittest


class Ends(unittest.TestCase):
    def test_alike(self):
        pass

    def test_failing_anyway(self):
        self.fail()

    def test_differing(self):
        self.assertEqual(os.environ["TASKD_PROCESS_ENABLE"], "off")  # noqa: PT009 - as torch's are

    @unittest.skip("never")
    def test_skipped(self):
        pass
