"""How many tokens of the prompt one image becomes, from the model's two configs and its size.

Upper bounds, markers included, so that a request can be judged before its image is decoded. Pure;
never opens an image. Source: transformers 5.24's image processors and processors, which mlx-vlm
follows.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from manifests.sizing.config_fields import ConfigFields

# A family that is not known here: as many as Qwen 2.5-VL gives its largest image by default, or
# one for each patch where the encoder's own size has more.
FALLBACK_TOKENS = 1280

# Tokens around the image's own: what opens and closes it, and line breaks.
MARKERS = 6
# "Here is the original image ... and here are some crops to help you see better".
CROPS_SENTENCE_TOKENS = 32
# An opening token and one with the tile's place. A row ends with a line break.
TILE_MARKERS = 2

# Qwen's own defaults, in pixels. Source: transformers, `Qwen2VLImageProcessor.size`.
QWEN_MIN_PIXELS = 56 * 56
QWEN_MAX_PIXELS = 28 * 28 * 1280
# Idefics 3 never makes an image larger than this.
IDEFICS_MAX_EDGE = 4096

Count = Callable[[ConfigFields, ConfigFields, int, int], int]


def estimate_image_tokens(
    config: Mapping[str, Any], preprocessor: Mapping[str, Any], width: int, height: int
) -> int:
    """Return the most tokens that one image takes in the prompt.

    `config` is the model's parsed `config.json`, `preprocessor` its `preprocessor_config.json`.
    Units: pixels in, tokens out. Raises: ValueError naming the field that makes no sense.
    """
    if width < 1 or height < 1:
        raise ValueError(f"an image must have at least 1 x 1 pixels, not {width} x {height}")
    fields = ConfigFields(config)
    settings = ConfigFields(preprocessor, file="preprocessor_config.json")
    count = _FAMILIES.get(str(config.get("model_type")), _count_unknown)
    return count(fields, settings, width, height)


def _count_qwen(config: ConfigFields, settings: ConfigFields, width: int, height: int) -> int:
    """Sides are rounded to whole merged patches, within bounds of pixels."""
    vision, size = config.section("vision_config"), settings.section("size")
    patch = settings.optional("patch_size") or vision.integer("patch_size")
    merge = settings.optional("merge_size") or vision.integer("spatial_merge_size")
    factor = max(1, patch * merge)
    least = settings.optional("min_pixels") or size.optional("shortest_edge") or QWEN_MIN_PIXELS
    most = settings.optional("max_pixels") or size.optional("longest_edge") or QWEN_MAX_PIXELS
    tall, wide = (round(side / factor) for side in (height, width))
    unscaled = max(1, tall) * max(1, wide)  # what older processors make of a thin image
    if tall * wide * factor**2 > most:
        scale = math.sqrt(height * width / most)
        tall, wide = (max(1, math.floor(side / scale / factor)) for side in (height, width))
        unscaled = 0
    elif tall * wide * factor**2 < least:
        scale = math.sqrt(least / (height * width))
        tall, wide = (math.ceil(side * scale / factor) for side in (height, width))
    return max(tall * wide, min(unscaled, most // factor**2)) + MARKERS


def _count_gemma3(config: ConfigFields, settings: ConfigFields, width: int, height: int) -> int:
    """Every image is the same size; pan and scan adds crops of a long one."""
    own = config.optional("mm_tokens_per_image") or settings.optional("image_seq_length") or 256
    if not settings.value("do_pan_and_scan"):
        return own + MARKERS
    ratio = max(width, height) / min(width, height)
    crops = min(settings.integer("pan_and_scan_max_num_crops"), max(2, math.floor(ratio + 0.5)))
    return (1 + crops) * (own + MARKERS) + CROPS_SENTENCE_TOKENS


def _count_idefics3(config: ConfigFields, settings: ConfigFields, width: int, height: int) -> int:
    """A large image is cut into tiles, and comes once more as a whole."""
    vision = config.section("vision_config")
    tile_edge = settings.section("max_image_size").optional("longest_edge")
    tile_edge = tile_edge or vision.integer("image_size")
    scale = config.integer("scale_factor")
    own = max(1, (tile_edge // vision.integer("patch_size")) ** 2 // scale**2)
    if settings.value("do_image_splitting") is False:
        return own + MARKERS
    longest = settings.section("size").optional("longest_edge") or 4 * tile_edge
    longest = min(longest, IDEFICS_MAX_EDGE)
    aspect = width / height
    shortest = int(longest / aspect if width >= height else longest * aspect)
    shortest += shortest % 2
    columns, rows = (max(1, math.ceil(side / max(1, tile_edge))) for side in (longest, shortest))
    if columns == 1:
        return own + MARKERS
    return (rows * columns + 1) * (own + TILE_MARKERS) + columns + MARKERS


def _count_unknown(config: ConfigFields, _settings: ConfigFields, _width: int, _height: int) -> int:
    vision = config.section("vision_config")
    patches = (vision.optional("image_size") or 0) // max(1, vision.optional("patch_size") or 1)
    rows_with_breaks = patches * (patches + 1) if vision.has("patch_size") else 0
    return max(FALLBACK_TOKENS, rows_with_breaks) + MARKERS


_FAMILIES: Mapping[str, Count] = {
    "qwen2_vl": _count_qwen,
    "qwen2_5_vl": _count_qwen,
    "qwen3_vl": _count_qwen,
    "qwen3_vl_moe": _count_qwen,
    "gemma3": _count_gemma3,
    "smolvlm": _count_idefics3,
    "idefics3": _count_idefics3,
}
