"""How many tokens an image becomes: bounds that real processors reach and do not pass."""

from typing import Any

import pytest

from manifests.sizing.image_tokens import FALLBACK_TOKENS, MARKERS, estimate_image_tokens

QWEN_2_5 = {
    "model_type": "qwen2_5_vl",
    "vision_config": {"patch_size": 14, "spatial_merge_size": 2},
}
QWEN_3 = {"model_type": "qwen3_vl", "vision_config": {"patch_size": 16, "spatial_merge_size": 2}}
GEMMA_3 = {"model_type": "gemma3", "mm_tokens_per_image": 256}
SMOLVLM = {
    "model_type": "smolvlm",
    "scale_factor": 4,
    "vision_config": {"image_size": 512, "patch_size": 16},
}
TILES = {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}
MILLION = {"min_pixels": 56 * 56, "max_pixels": 28 * 28 * 1280}


# The tokens between the markers were counted with the processors of transformers 5.24.
@pytest.mark.parametrize(
    ("config", "settings", "size", "tokens"),
    [
        (QWEN_2_5, MILLION, (4000, 3000), 1230),
        (QWEN_2_5, {}, (4000, 3000), 1230),
        (QWEN_2_5, {"size": {"longest_edge": 28 * 28 * 100}}, (4000, 3000), 88),
        (QWEN_2_5, MILLION, (280, 140), 50),
        (QWEN_2_5, MILLION, (496, 3), 26),
        (QWEN_2_5, MILLION, (5043, 960), 1230),
        (QWEN_3, {"size": {"longest_edge": 1024 * 1024}}, (4000, 3000), 972),
        (GEMMA_3, {}, (4000, 3000), 256),
    ],
)
def test_an_image_takes_as_many_tokens_as_its_processor_makes(
    config: dict[str, Any], settings: dict[str, Any], size: tuple[int, int], tokens: int
) -> None:
    assert estimate_image_tokens(config, settings, *size) == tokens + MARKERS


@pytest.mark.parametrize("size", [(10_000, 10_000), (10_000, 60), (1, 1), (3, 500), (777, 1234)])
def test_qwen_never_passes_its_bound_on_pixels(size: tuple[int, int]) -> None:
    for config, factor in ((QWEN_2_5, 28), (QWEN_3, 32)):
        most = MILLION["max_pixels"] // factor**2
        assert 1 <= estimate_image_tokens(config, MILLION, *size) <= most + MARKERS


def test_pan_and_scan_adds_crops_of_a_long_image_up_to_its_bound() -> None:
    settings = {"do_pan_and_scan": True, "pan_and_scan_max_num_crops": 4}
    square = estimate_image_tokens(GEMMA_3, settings, 900, 900)
    assert square >= 256 * 3
    longest = estimate_image_tokens(GEMMA_3, settings, 9000, 900)
    assert 256 * 5 <= longest < 256 * 6
    assert estimate_image_tokens(GEMMA_3, settings, 900, 9000) == longest


@pytest.mark.parametrize(
    ("size", "tiles"),
    [((2048, 2048), 17), ((100, 100), 17), ((1000, 500), 9), ((500, 1000), 9), ((4000, 10), 5)],
)
def test_smolvlm_takes_its_tiles_and_the_whole_image(size: tuple[int, int], tiles: int) -> None:
    tokens = estimate_image_tokens(SMOLVLM, TILES, *size)
    assert tiles * 64 < tokens < tiles * 67 + 20


def test_smolvlm_takes_one_tile_where_images_are_not_split() -> None:
    settings = TILES | {"do_image_splitting": False}
    assert estimate_image_tokens(SMOLVLM, settings, 4000, 3000) == 64 + MARKERS


def test_an_unknown_family_takes_a_generous_bound() -> None:
    unknown = {"model_type": "brand_new"}
    assert estimate_image_tokens(unknown, {}, 10, 10) == FALLBACK_TOKENS + MARKERS
    patches = unknown | {"vision_config": {"image_size": 1024, "patch_size": 16}}
    assert estimate_image_tokens(patches, {}, 10, 10) >= 64 * 64


@pytest.mark.parametrize(
    ("config", "settings", "complaint"),
    [
        (QWEN_2_5, {"patch_size": "14"}, "preprocessor_config.json: patch_size must be a whole"),
        (QWEN_2_5, {"size": {"longest_edge": -1}}, "preprocessor_config.json: size.longest_edge"),
        ({"model_type": "qwen3_vl"}, {}, "config.json: vision_config.patch_size is missing"),
        (SMOLVLM | {"scale_factor": 0}, TILES, "config.json: scale_factor must be at least 1"),
        (GEMMA_3, {"do_pan_and_scan": True}, "pan_and_scan_max_num_crops is missing"),
    ],
)
def test_an_odd_field_of_either_file_is_named(
    config: dict[str, Any], settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        estimate_image_tokens(config, settings, 640, 480)


def test_an_image_without_pixels_is_refused() -> None:
    with pytest.raises(ValueError, match="not 0 x 480"):
        estimate_image_tokens(QWEN_2_5, {}, 0, 480)
