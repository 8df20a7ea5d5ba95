"""pytest tests/more/test_wrong_versions.py: some faults put into a copy of the code; all are
noticed.

`python tests/wrong_versions.py` tries the whole list. The faults are tried by a process without
pytest's threads, which a fork would not survive.
"""
import subprocess
import sys

import pytest
from wrong_versions import ROOT, entries, trouble


def test_every_entry_has_its_place_and_its_test():
    assert [why for why in (trouble(*entry) for entry in entries()) if why] == []
    assert len(set(entries())) == len(entries()) >= 250


@pytest.mark.slow
def test_some_faults_are_noticed():
    done = subprocess.run([sys.executable, ROOT / "tests/wrong_versions.py", "--sample", "6"],
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
