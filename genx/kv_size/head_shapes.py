"""How many key/value heads a layer has, and how large one is: the many names that files use for it."""

from collections.abc import Mapping

from genx.errors import UsageError
from genx.kv_size.fields import Fields, check_count


def kv_heads_of_layers(fields: Fields, count: int) -> list[int]:
    """Key/value heads of each layer, by the many names there are for them."""
    listed = fields.counts("num_key_value_heads", count) or fields.counts("num_key_value_heads_per_layer", count)
    if listed is not None:
        return listed
    blocks = fields.find("block_configs")
    if blocks is not None:
        return _heads_of_blocks(fields, blocks.value, count)
    if _is_multi_query(fields):
        return [1] * count
    nested = fields.part("attn_config")
    if nested is not None and nested.get("kv_n_heads") is not None:
        kv_heads = check_count("attn_config.kv_n_heads", nested["kv_n_heads"])
        fields.note("num_key_value_heads", kv_heads, "explicit, as attn_config.kv_n_heads")
        return [kv_heads] * count
    return [_kv_heads(fields)] * count


def _kv_heads(fields: Fields) -> int:
    """One number of key/value heads for all layers; none said is multi-head attention."""
    kv_heads = fields.count("num_key_value_heads")
    if kv_heads is None:
        return _all_heads(fields)
    heads = fields.count("num_attention_heads")
    if heads is not None and heads % kv_heads:
        raise UsageError(
            f"num_key_value_heads is {kv_heads} and num_attention_heads {heads}; allowed: key/value heads that divide "
            "the attention heads; correct one with --kv-heads or --heads"
        )
    return kv_heads


def _is_multi_query(fields: Fields) -> bool:
    """Falcon and GPT-BigCode say so by a flag, which Falcon's newer form overrules."""
    if not fields.truth("multi_query") or fields.truth("new_decoder_architecture"):
        return False
    if "num_key_value_heads" in fields.overrides:
        return False
    fields.note("num_key_value_heads", 1, "multi_query")
    return True


def _all_heads(fields: Fields) -> int:
    heads = fields.count("num_attention_heads")
    if heads is None:
        raise fields.missing("num_key_value_heads", "(or num_attention_heads) tells the key/value heads")
    fields.note("num_key_value_heads", heads, "no num_key_value_heads, so MHA: as many as num_attention_heads")
    return heads


def _heads_of_blocks(fields: Fields, blocks: object, count: int) -> list[int]:
    """Nemotron-NAS: each block says how many query heads share a key/value head, or that it does not attend."""
    heads = fields.require("num_attention_heads")
    if not isinstance(blocks, list) or len(blocks) != count:
        raise UsageError(f"block_configs is no list of {count} blocks; give --kv-heads")
    found = []
    for number, block in enumerate(blocks):
        attention = block.get("attention") if isinstance(block, Mapping) else None
        if not isinstance(attention, Mapping):
            raise UsageError(f"block_configs[{number}] has no attention; give --kv-heads")
        shared = attention.get("n_heads_in_group")
        skipped = attention.get("no_op") or attention.get("replace_with_linear") or shared is None
        found.append(0 if skipped else heads // check_count(f"block_configs[{number}].n_heads_in_group", shared))
    return found


def global_kv_heads(fields: Fields) -> int | None:
    """Gemma 4: its full layers may have key/value heads of their own, unless attention_k_eq_v is said to be false."""
    heads = fields.count("num_global_key_value_heads")
    return None if heads is None or fields.truth("attention_k_eq_v") is False else heads


def head_size(fields: Fields, heads: int | None) -> int:
    """The explicit size of a head; else hidden size by heads, where that divides."""
    field = fields.find("head_dim")
    if field is not None and field.value != 0:
        return check_count("head_dim", field.value)
    heads = heads or fields.count("num_attention_heads")
    hidden = fields.count("hidden_size")
    if heads is None or hidden is None:
        raise fields.missing("head_dim", "(or hidden_size and num_attention_heads) tells the size of a head")
    if hidden % heads:
        raise UsageError(
            f"hidden_size {hidden} does not divide into {heads} attention heads, and the configuration has no "
            "head_dim; give it with --head-dim"
        )
    fields.note("head_dim", hidden // heads, f"hidden_size {hidden} / num_attention_heads {heads}")
    return hidden // heads
