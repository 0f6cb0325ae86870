from pathlib import Path

import pytest

from tests.support.local_text import LocalText
from tests.support.tiny_tokenizers import FAMILIES, write_tokenizer


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LocalText]:
    root: Path = tmp_path_factory.mktemp("tokenizers")
    return {family: LocalText(write_tokenizer(family, root / family)) for family in FAMILIES}
