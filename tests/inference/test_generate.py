"""Greedy generation is the argmax of the full forward pass, a batch gives what each prompt gives
alone, and calls after the first compile nothing."""

import concurrent.futures
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flaxformer_lite import generate, registry, score, stream
from flaxformer_lite.analysis import recompiles
from flaxformer_lite.inference import stop_strings
from flaxformer_lite.nn.modules.block import Block
from tests.marks import daily
from tests.models.tiny import built, ids, is_encoder_decoder, logits_of, small
from tests.pretrained.fixtures import loaded

CASES = {
    "gpt2": ("gpt2", {}),
    "gpt2_window_scan": ("gpt2", {"windows": (3, 0), "scan": True}),
    "gpt2_alibi": ("gpt2", {"position": "alibi"}),
    "llama_grouped": ("llama", {"num_kv_heads": 2, "windows": (4,)}),
    "llama_bfloat16": ("llama", {"dtype": "bfloat16", "param_dtype": "bfloat16"}),
    "t5": ("t5", {}),
    "transformer": ("transformer", {}),
}
LENGTH = 7
NEW = 6


def model_of(case):
    family, overrides = CASES[case]
    if "position" in overrides:
        overrides = overrides | {
            "position": registry.resolve_class("positions", overrides["position"])()
        }
    cfg = small(family, number=len(overrides.get("windows", (0,))), **overrides)
    return cfg, *built(cfg)


def greedy(cfg, model, params, prompt):
    """The definition: the whole row through the model, the last column's argmax, again. Rows are
    filled up to one length so that the forward pass compiles once: what stands behind a column
    changes nothing in it."""
    written = [0] if is_encoder_decoder(cfg) else list(prompt)
    source = np.asarray([prompt + [0] * (LENGTH - len(prompt))], np.int32)
    for _ in range(NEW):
        row = np.asarray([written + [0] * (LENGTH + NEW - len(written))], np.int32)
        if is_encoder_decoder(cfg):
            inputs = {"input_ids": source, "attention_mask": source > 0, "decoder_input_ids": row}
        else:
            inputs = {"input_ids": row}
        written.append(int(np.argmax(logits_of(model, params, **inputs)[0, len(written) - 1])))
    return written


DAILY = ("t5",)


@pytest.mark.parametrize("case", daily(CASES, DAILY))
def test_unequal_prompts_continue_as_the_full_forward_says(case):
    cfg, model, params = model_of(case)
    prompts = [np.asarray(ids(seed, 1, n)[0]).tolist() for seed, n in ((1, LENGTH), (2, 4))]
    expected = [greedy(cfg, model, params, prompt) for prompt in prompts]
    sides = [lambda p: p + [0] * (LENGTH - len(p)), lambda p: [0] * (LENGTH - len(p)) + p]
    if is_encoder_decoder(cfg):
        sides = sides[:1]  # an encoder's positions count its columns, as in transformers
    for filled in sides:
        rows = np.asarray([filled(prompt) for prompt in prompts], np.int64)
        written = generate(model, params, rows, jnp.asarray(rows > 0), max_new_tokens=NEW)
        for row, want in zip(written, expected, strict=True):
            np.testing.assert_array_equal(row[-len(want) :], want)


def test_later_calls_compile_nothing():
    _, model, params = model_of("llama_grouped")
    before = None
    for length, new in ((5, 3), (3, 3), (9, 5), (16, 16)):
        options = {"temperature": new / 10, "seed": new, "eos_token_id": new}
        generate(model, params, np.ones((2, length), int), max_new_tokens=new, **options)
        before = recompiles.total() if before is None else before
    assert recompiles.total() == before


def test_equal_layers_are_traced_once_a_program(monkeypatch):
    model, params = built(small("llama", decoder_layers=5, mlp_dim=41))  # a width of no other test
    traced = []
    forward = Block.forward

    def counted(self, *args):
        traced.append(self.name)
        return forward(self, *args)

    monkeypatch.setattr(Block, "forward", counted)
    generate(model, params, np.ones((1, 5), int), max_new_tokens=2)
    assert len(traced) == 2, traced  # one of the prompt, one of the loop


@pytest.mark.nightly
def test_threads_share_a_model():
    _, model, params = model_of("gpt2")
    rows = [[1, 2, 3, 4, 5], [6, 7]]
    write = functools.partial(generate, model, params, max_new_tokens=6)
    calls = [
        lambda: write(rows, temperature=1.0, seed=3),
        lambda: write(rows[:1], num_beams=2),
        lambda: np.concatenate(list(stream(model, params, [[6, 7]], max_new_tokens=6)), axis=1),
        lambda: score(model, params, [[1, 2, 3], [6]], [[4], [7, 8]]).logprobs,
        lambda: np.asarray(logits_of(model, params, input_ids=ids(1, 2, 6))),
    ]
    # the first calls compile at the same time
    with concurrent.futures.ThreadPoolExecutor(2 * len(calls)) as threads:
        found = list(threads.map(lambda call: call(), 6 * calls))
    alone = [call() for call in calls]
    for number, result in enumerate(found):
        np.testing.assert_array_equal(result, alone[number % len(calls)])


def test_a_stop_token_ends_its_row_alone():
    _, model, params = model_of("gpt2")
    prompts = [[1, 2, 3, 4, 5], [6, 7]]
    write = functools.partial(generate, model, params, max_new_tokens=8)
    free = write(prompts)[:, 5:]
    stop = int(free[0, 3])
    assert stop not in free[1]
    found = write(prompts, eos_token_id=stop, pad_token_id=9, return_scores=True)
    first = free[0].tolist().index(stop) + 1
    assert found.lengths.tolist() == [first, 8]
    assert found.sequences[0, 5:].tolist() == [*free[0, :first].tolist(), *[9] * (8 - first)]
    assert found.sequences[1, 5:].tolist() == free[1].tolist()
    assert not found.logprobs[0, first:].any()
    assert write(prompts, eos_token_id=(stop, int(free[1, 0]))).shape == (2, 5 + first)
    late = write(prompts[:1], eos_token_id=stop, min_new_tokens=first)
    assert stop not in late[0, 5 : 5 + first]


def test_logprobs_are_the_models_own():
    _, model, params = model_of("gpt2")
    prompt = [[1, 2, 3, 4, 5], [8, 9, 10, 11, 12]]
    sampled = {"temperature": 0.5, "top_k": 5, "seed": 4, "return_scores": True}
    found = generate(model, params, prompt, max_new_tokens=6, **sampled)
    logits = logits_of(model, params, input_ids=jnp.asarray(found.sequences))
    logprobs = np.asarray(jax.nn.log_softmax(logits))[:, 4:-1]
    want = np.take_along_axis(logprobs, found.sequences[:, 5:, None], axis=2)[..., 0]
    np.testing.assert_allclose(found.logprobs, want, rtol=1e-4, atol=1e-5)


def test_a_seed_gives_the_same_text_and_samples_differ():
    _, model, params = model_of("gpt2")
    options = {"max_new_tokens": 8, "temperature": 1.5, "num_return_sequences": 4}
    one, again, other = (
        generate(model, params, [[1, 2, 3], [4, 5]], seed=seed, **options) for seed in (7, 7, 8)
    )
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    assert len({tuple(row) for row in one[:4, 3:].tolist()}) == 4
    assert (one[4:, :3] == [0, 4, 5]).all()
    alone = generate(model, params, [[1, 2, 3]], seed=7, **options)
    np.testing.assert_array_equal(one[:4], alone)


def test_stream_is_generate_in_pieces():
    _, model, params = model_of("llama_grouped")
    options = {"max_new_tokens": 9, "temperature": 1.0, "seed": 3, "eos_token_id": 11}
    pieces = list(stream(model, params, [[1, 2, 3], [4, 5]], every=2, **options))
    assert all(piece.shape[1] <= 2 for piece in pieces)
    whole = generate(model, params, [[1, 2, 3], [4, 5]], **options)
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), whole[:, 3:])
    before = recompiles.total()
    list(stream(model, params, [[1, 2, 3], [4, 5]], every=1, **options))
    assert recompiles.total() == before


class Letters:
    def decode(self, tokens):
        return "".join(chr(ord("a") + token % 26) for token in tokens)


def test_stop_strings_end_a_row_with_the_token_that_completes_them():
    _, model, params = model_of("gpt2")
    options = {"max_new_tokens": 12, "temperature": 1.0, "seed": 5, "pad_token_id": 36}
    free = generate(model, params, [[1, 2], [3, 4]], **options)[:, 2:]
    stop = Letters().decode(free[0].tolist())[7:9]
    end = Letters().decode(free[0].tolist()).index(stop) + 2
    assert end == stop_strings.TOKENS_PER_CHECK + 1, "the first token after a look at the text"
    before = recompiles.total()
    ways = {"tokenizer": Letters(), "stop_strings": (stop,), "return_scores": True}
    found = generate(model, params, [[1, 2], [3, 4]], **ways, **options)
    written = found.sequences[:, 2:]
    assert found.lengths[0] == end
    assert found.logprobs[0, end - 1] and not found.logprobs[0, end:].any()
    assert written[0, :end].tolist() == free[0, :end].tolist() and (written[0, end:] == 36).all()
    assert written[1].tolist() == free[1, : found.lengths[1]].tolist()
    assert recompiles.total() - before <= 2  # a prefill and a loop that keep log-probabilities


def test_forced_first_and_last_tokens_and_what_is_suppressed():
    _, model, params = model_of("t5")
    write = functools.partial(generate, model, params, np.ones((2, 5), int), max_new_tokens=5)
    out = write(forced_bos_token_id=7, forced_eos_token_id=3, eos_token_id=3)
    assert (out[:, 1] == 7).all()
    assert all(3 in row[2:] for row in out)
    usual = write()[0, 2]
    assert usual not in write(suppress_tokens=(int(usual),))


MBART = {"input_ids": [[5, 9, 30, 41, 2, 11]], "decoder_start_token_id": 2, "max_new_tokens": 5}
MBART |= {"forced_bos_token_id": 7}


STARTS = [
    ([[2]], [2, 7, 60, 60, 60, 60]),
    ([[2, 7]], [2, 7, 60, 60, 60, 60, 60]),
    ([[2, 7, 12]], [2, 7, 12, 57, 57, 57, 57, 57]),
]


@pytest.mark.parametrize(("prompt", "due"), daily(STARTS, STARTS[1:2]))
def test_a_forced_first_token_stands_behind_the_bare_start_alone(prompt, due):
    """Whoever gives the language does not get it twice."""
    model, params = loaded("mbart_conditional_generation")
    assert generate(model, params, decoder_input_ids=prompt, **MBART)[0].tolist() == due


@pytest.mark.nightly
def test_so_it_is_with_other_starts_beams_and_a_forced_last_token():
    model, params = loaded("mbart_conditional_generation")
    free = generate(model, params, decoder_input_ids=[[7]], **MBART | {"forced_bos_token_id": None})
    np.testing.assert_array_equal(generate(model, params, decoder_input_ids=[[7]], **MBART), free)
    beams = generate(model, params, decoder_input_ids=[[2, 7]], **MBART, num_beams=2)
    assert beams[0].tolist() == [2, 7, 60, 60, 60, 60, 60]
    last = MBART | {"forced_bos_token_id": None, "forced_eos_token_id": 3, "max_new_tokens": 4}
    written = generate(model, params, decoder_input_ids=[[2, 7]], **last)
    assert written[0].tolist() == [2, 7, 60, 60, 60, 3]


def test_new_tokens_decide_where_a_least_length_is_given_too():
    """torch 2.13, transformers 5.23, with GPT-2's fixture and the stop tokens that it would write
    at once."""
    model, params = loaded("gpt2_lm")
    common = {"eos_token_id": [0, 5, 21, 31, 41, 43, 53], "max_new_tokens": 8}
    for least, due in (
        ({}, [0]),
        ({"min_length": 6}, [59, 34, 34, 34, 21]),
        ({"min_new_tokens": 2, "min_length": 6}, [59, 34, 21]),
        ({"min_new_tokens": 0, "min_length": 6}, [0]),
    ):
        assert generate(model, params, [[5, 6]], **common, **least)[0, 2:].tolist() == due, least


@pytest.mark.nightly
def test_a_decoder_prompt_of_several_tokens():
    _, model, params = model_of("t5")
    source = ids(1, 2, 6)
    prompt = [[0, 4, 9], [0, 8, 2]]
    out = generate(model, params, np.asarray(source), decoder_input_ids=prompt, max_new_tokens=4)
    logits = logits_of(model, params, input_ids=source, decoder_input_ids=jnp.asarray(out))
    np.testing.assert_array_equal(out[:, 3:], jnp.argmax(logits, axis=-1)[:, 2:-1])


ERRORS = [
    ("gpt2", {"max_new_tokens": 12}, "max_length=16; ask for at most 11 new tokens"),
    ("llama", {"max_new_tokens": 10**9}, "rows end at 16777216; ask for at most 16777211 new to"),
    ("gpt2", {"max_new_tokens": None}, "max_new_tokens is missing"),
    ("gpt2", {"max_new_token": 3}, "did you mean max_new_tokens"),
    ("gpt2", {"top_k": 5}, "set temperature=1.0"),
    ("gpt2", {"top_p": 1.5, "temperature": 1.0}, r"top_p=1.5: must be a probability"),
    ("gpt2", {"num_return_sequences": 2}, "greedy search has only one result"),
    ("gpt2", {"num_return_sequences": 3, "num_beams": 2}, "raise num_beams"),
    ("gpt2", {"temperature": 1.0, "num_beams": 2}, "beam search does not sample"),
    ("gpt2", {"eos_token_id": 99}, "eos_token_id=99: must be in 0..36"),
    ("gpt2", {"forced_bos_token_id": 99}, "forced_bos_token_id=99: must be in 0..36"),
    ("gpt2", {"suppress_tokens": [1, -1]}, r"suppress_tokens=\(1, -1\): must be in"),
    ("gpt2", {"stop_strings": ("a",)}, "needs tokenizer="),
    ("gpt2", {"max_new_tokens": None, "max_length": 5}, "the prompt alone has 5 tokens"),
    ("gpt2", {"decoder_input_ids": [[0]]}, "has no encoder"),
    ("bert", {}, "only a decoder with head='lm'"),
    ("gpt2", {"input_ids": [[1, 99]]}, "holds the id 99"),
    ("gpt2", {"attention_mask": [[1, 1]]}, "must match input_ids"),
    ("gpt2", {"attention_mask": [[0] * 5]}, "row 0 keeps no token"),
    ("gpt2", {"input_ids": [1, 2]}, r"\[batch, length\]"),
]


@pytest.mark.parametrize(("family", "options", "message"), ERRORS)
def test_errors_say_the_way_out_before_anything_compiles(family, options, message):
    model = registry.resolve("models", family).Model(small(family))
    given = {"input_ids": [[1, 2, 3, 4, 5]], "max_new_tokens": 3} | options
    with pytest.raises(ValueError, match=message):
        generate(model, None, **given)


@pytest.mark.nightly
def test_sharded_weights_write_the_same():
    _, model, params = model_of("gpt2")
    mesh = Mesh(np.asarray(jax.devices()).reshape(2, 4), ("data", "fsdp"))

    def place(x):
        spec = PartitionSpec("fsdp" if x.shape[0] % 4 == 0 else None)
        return jax.device_put(x, NamedSharding(mesh, spec))

    options = {"max_new_tokens": 8, "temperature": 1.0, "num_return_sequences": 2}
    one, many = (
        generate(model, p, [[1, 2, 3], [4, 5]], **options)
        for p in (params, jax.tree.map(place, params))
    )
    np.testing.assert_array_equal(one, many)


def test_a_prompt_beyond_what_a_rotary_model_has_seen_is_said_once(caplog):
    model, params = built(small("llama", max_length=4))
    for _ in range(2):
        generate(model, params, [[1, 2, 3, 4, 5]], max_new_tokens=1)
    generate(model, params, [[1, 2, 3]], max_new_tokens=4)
    assert [line.partition(";")[0] for line in caplog.messages] == [
        "a prompt of 5 tokens: this llama was made for at most 4"
    ]
