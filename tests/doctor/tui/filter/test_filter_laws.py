"""Properties of every filter and every row."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.case.device_samples import Device
from mgpu_doctor.findings import RankSummary
from mgpu_doctor.tui.filter.fields import FIELDS, NumberField
from mgpu_doctor.tui.filter.language import Filter, FilterError, parse, pointed
from mgpu_doctor.tui.view import Row
from tests.support.diagnoses import rank
from tests.support.seeds import at_most

ANY_FLOAT = st.none() | st.floats(0, 4) | st.just(float("nan"))
SMALL = st.none() | st.integers(0, 5)
NAMES = st.none() | st.sampled_from(["a", "A b", "cuda:0", "ab", "[red]", "\x1b[2J"]) | st.text()


@st.composite
def ranks(draw: st.DrawFn) -> RankSummary:
    made = rank(draw(SMALL), host=draw(st.text(max_size=3)), where=draw(NAMES))
    phases = {name: draw(ANY_FLOAT) for name in PHASES}
    return replace(made, phases=phases, device=draw(NAMES), last_step=draw(SMALL))


@st.composite
def devices(draw: st.DrawFn) -> Device:
    return Device(
        draw(st.integers(0, 5)),
        name=draw(NAMES),
        utilization=draw(ANY_FLOAT),
        memory_used=draw(SMALL),
        memory_total=draw(SMALL),
        temperature=draw(ANY_FLOAT),
    )


ROWS = st.builds(
    Row,
    st.none() | ranks(),
    st.none() | devices(),
    st.lists(st.integers(0, 5)).map(tuple),
    NAMES,
    NAMES,
)


@st.composite
def terms(draw: st.DrawFn) -> str:
    field = FIELDS[draw(st.sampled_from(sorted(FIELDS)))]
    if draw(st.integers(0, 9)) == 0:
        return f"{field.name}{draw(st.sampled_from([':', '=', '!=']))}?"
    if isinstance(field, NumberField):
        unit = draw(st.sampled_from(field.units)).sign
        low, high = draw(st.integers(0, 3)), draw(st.integers(3, 9))
        if draw(st.booleans()):
            sign = draw(st.sampled_from(["<", "<=", ">", ">=", "=", "!="]))
            return f"{field.name} {sign} {low}{unit}"
        return f"{field.name}:{low}{unit}-{high}{unit},{high}{unit}"
    text = draw(st.sampled_from(["a", "'A b'", "cuda:0", "a,'b c'", '"x\'y"']))
    return f"{field.name}{draw(st.sampled_from([':', '=', '!=']))}{text}"


TYPED = st.recursive(
    terms() | st.sampled_from(["a", "'a b'", '"and"', "h100"]),
    lambda part: st.one_of(
        part.map("!({})".format),
        part.map("not {}".format),
        st.tuples(part, st.sampled_from([" ", "&", "|", " and ", " or "]), part).map("".join),
        part.map("({})".format),
    ),
    max_leaves=6,
)
CHARACTERS = st.sampled_from([*"utilrankgpumem<>=!&|()'\",:?-%. 0123456789", "not ", "and ", "🦆"])


def _parsed(typed: str) -> Filter | FilterError:
    try:
        return parse(typed)
    except FilterError as error:
        return error


@given(st.text(max_size=200) | st.lists(CHARACTERS, max_size=60).map("".join))
@settings(max_examples=at_most(500))
def test_nothing_typed_raises_but_a_filter_error(typed: str) -> None:
    made = _parsed(typed)
    if isinstance(made, FilterError):
        assert 0 <= made.column <= len(typed)
        assert made.message.isprintable()
        assert len(pointed(typed, made).splitlines()) == 3
    else:
        assert parse(str(made)) == made


@given(TYPED, ROWS)
@settings(max_examples=at_most(300))
def test_its_text_means_the_same(typed: str, row: Row) -> None:
    parsed = parse(typed)
    again = parse(str(parsed))
    assert again == parsed
    assert str(again) == str(parsed)
    assert again.matches(row) is parsed.matches(row)


@given(TYPED, TYPED, TYPED, ROWS)
@settings(max_examples=at_most(300))
def test_not_and_or_keep_their_laws(a: str, b: str, c: str, row: Row) -> None:
    def holds(typed: str) -> bool:
        return parse(typed).matches(row)

    assert holds(f"!({a})") is not holds(a)
    assert holds(f"({a}) & ({b})") is (holds(a) and holds(b))
    assert holds(f"({a}) ({b})") is holds(f"({b}) & ({a})")
    assert holds(f"({a}) | ({b})") is (holds(a) or holds(b))
    assert holds(f"!(({a}) | ({b}))") is holds(f"!({a}) !({b})")
    assert holds(f"({a}) | ({b}) & ({c})") is (holds(a) or (holds(b) and holds(c)))


@given(st.sampled_from(sorted(FIELDS)), ROWS)
def test_a_field_is_known_or_not(name: str, row: Row) -> None:
    unknown = parse(f"{name}=?").matches(row)
    assert parse(f"{name}!=?").matches(row) is not unknown
    field = FIELDS[name]
    if isinstance(field, NumberField) and not field.units[0].is_share:
        unit = field.units[0].sign
        below, rest = f"{name}<2{unit}", f"{name}>=2{unit}"
        if name != "pid":  # a GPU may have several
            assert not parse(f"{below} & {rest}").matches(row)
        assert parse(f"{below} | {rest}").matches(row) is not unknown
