"""Values are read and written by generated code, as users do."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _generated(generated_code):
    pass
