"""One vLLM process for all tests that need it: most of its start is imports."""

import pytest
from vllm_process import Child


@pytest.fixture(scope="session")
def vllm_child():
    child = Child()
    yield child
    child.close()
