"""Rules of access: what is refused, what they allow together, and what becomes of a file that changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from logboom import access, certs
from logboom.access import ALL, Grants, Right, Rule, Rules
from logboom.config import load
from logboom.errors import ConfigError
from tests.unit.logboom.command_line import run

ROOT = Path(__file__).resolve().parents[3]


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    return path


def rule(principal: str, *allow: Right, partitions: str = "*") -> Rule:
    return Rule(principal, allow, partitions)


def of(*rules: Rule, names: tuple[str, ...] = ("me",)) -> Grants:
    return Rules(rules).of(names)


# -- the file


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no rules"),
        ("[[rules]", "rules.toml"),
        ("\0", "rules.toml"),
        ("rules = 3", "rules"),
        ("[[rule]]\nprincipal = 'a'\nallow = ['read']", "unknown field `rule`"),
        ("[[rules]]\nallow = ['read']", "rules[0]"),
        ("[[rules]]\nprincipal = 'a'", "allow"),
        ("[[rules]]\nprincipal = 'a'\nallow = ['raed']", "rules[0].allow[0]"),
        ("[[rules]]\nprincipal = 'a'\nallow = []", "rules[0].allow is empty"),
        ("[[rules]]\nprincipal = ''\nallow = ['read']", "rules[0].principal ''"),
        ("[[rules]]\nprincipal = 'spark-*'\nallow = ['read']", "a whole one"),
        ("[[rules]]\nprincipal = 'a'\nallow = ['read']\npartition = '3'", "unknown field `partition`"),
        ("[[rules]]\nprincipal = 'a'\nallow = ['read']\npartitions = '5-3'", "rules[0].partitions '5-3'"),
        ("[[rules]]\nprincipal = 'a'\nallow = ['read']\npartitions = ''", "rules[0].partitions ''"),
        ("[[rules]]\nprincipal = 'a'\nallow = ['read']\npartitions = '4294967296'", "0,3,5-9,cursors"),
        ("[[rules]]\nprincipal = 'a'\nallow = ['read']\npartitions = '0,*'", "rules[0].partitions"),
        ("[[rules]]\nprincipal = 'a'\nallow = ['status']\npartitions = '3'", "of the whole cluster"),
    ],
)
def test_what_is_refused_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        access.read(file(tmp_path, text))
    assert says in str(caught.value)
    assert "rules.toml" in str(caught.value)
    assert caught.value.path == "access.file"


def test_a_file_that_is_not_there_or_much_too_large_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml: No such file"):
        access.read(tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match=r"rules\.toml: is larger than 1048576"):
        access.read(file(tmp_path, "#" * (1 << 20) + "\n"))


def test_without_certificates_there_is_nobody_to_have_rules_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without TLS nobody has a name") as caught:
        load(environment={}, flags={"access.file": str(tmp_path / "rules.toml")})
    assert caught.value.path == "access.file"
    load(environment={}, flags={"access.file": "rules.toml", "tls.directory": "tls"})


def test_it_is_read_as_it_is_documented(tmp_path: Path) -> None:
    example = (access.__doc__ or "").partition("::\n")[2].partition("\nWhat no rule")[0]
    grants = access.read(file(tmp_path, "\n".join(line.strip() for line in example.splitlines()))).of(["billing"])
    assert grants.write.ranges == ((0, 7),)
    assert grants.write.cursors
    assert grants.admin == access.NOWHERE


@pytest.mark.parametrize("clients", ["none of their own", "the same", "one of several", "their own"])
def test_clients_have_an_authority_of_their_own_or_could_be_taken_for_nodes(tmp_path: Path, clients: str) -> None:
    certs.make_test_authority(tmp_path, ["n1"])
    own, nodes = tmp_path / "client-ca.pem", (tmp_path / "ca.pem").read_text()
    if clients == "none of their own":
        own.unlink()
    elif clients != "their own":
        own.write_text(nodes if clients == "the same" else f"{own.read_text()}\n# and the nodes'\n{nodes}")
    path = file(tmp_path, "[[rules]]\nprincipal = 'me'\nallow = ['read']\n")
    settings = load(environment={}, flags={"access.file": str(path), "tls.directory": str(tmp_path)})
    if clients == "their own":
        rules = access.of_node(settings, lambda _: None)
        assert rules is not None
        assert rules().count == 1
        return
    with pytest.raises(ConfigError, match=r"client-ca\.pem.*taken for a node"):
        access.of_node(settings, lambda _: None)


def test_without_a_file_there_are_no_rules() -> None:
    assert access.of_node(load(environment={}), lambda _: None) is None


def test_the_example_of_the_page_is_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operating.md").read_text().partition("## Who may do what")[2]
    switch, example = (part.partition("```")[0] for part in page.split("```toml\n")[1:3])
    assert load(file(tmp_path, switch), {}, {"tls.directory": "tls"}).access.file == "/etc/logboom/rules.toml"
    rules = access.read(file(tmp_path, example))
    assert rules.of(["ops"]).admin == ALL
    assert rules.of(["spark-jobs"]).write.ranges == ((0, 7),)
    assert (rules.of(["billing"]).read.cursors, rules.of(["billing"]).write.ranges) == (True, ())
    assert rules.of(["prometheus"]) == Grants("prometheus", status=ALL)


# -- what they allow


def test_what_no_rule_allows_is_not() -> None:
    assert of(rule("you", Right.READ)) == Grants("me")
    assert not any(of(rule("you", Right.ADMIN)).where(right).everywhere for right in Right)


@pytest.mark.parametrize(
    ("allow", "has"),
    [
        ((Right.STATUS,), {Right.STATUS}),
        ((Right.READ,), {Right.STATUS, Right.READ}),
        ((Right.WRITE,), {Right.STATUS, Right.WRITE}),
        ((Right.ADMIN,), set(Right)),
    ],
)
def test_each_right_comes_with_the_status_and_admin_with_all(allow: tuple[Right, ...], has: set[Right]) -> None:
    assert {right for right in Right if of(rule("me", *allow)).where(right) == ALL} == has
    some = of(rule("me", *allow, partitions="3")) if allow != (Right.STATUS,) else of(rule("me", *allow))
    assert some.where(Right.STATUS).everywhere
    assert {right for right in Right if some.where(right).has(3)} == has
    assert not any(some.where(right).has(4) for right in Right if right is not Right.STATUS)


def test_rules_for_one_name_and_those_for_everybody_add_up() -> None:
    rules = (
        rule("me", Right.READ, partitions="0,2-4"),
        rule("me", Right.READ, Right.WRITE, partitions="3-9, 20"),
        rule("*", Right.READ, partitions="10"),
    )
    mine = of(*rules)
    assert mine.read.ranges == ((0, 0), (2, 10), (20, 20))
    assert [p for p in range(25) if mine.read.has(p)] == [0, *range(2, 11), 20]
    assert [p for p in range(25) if mine.write.has(p)] == [*range(3, 10), 20]
    assert of(*rules, names=()).read.ranges == ((10, 10),)


def test_a_certificate_with_two_names_has_the_rights_of_both() -> None:
    both = of(rule("a", Right.READ), rule("b", Right.WRITE), names=("a", "b"))
    assert (both.read, both.write, both.who) == (ALL, ALL, "a, b")


def test_names_are_compared_whole_and_as_they_are() -> None:
    for name in ("Me", "me2", "m", "me "):
        assert of(rule(name, Right.READ)) == Grants("me")


def test_a_number_says_nothing_about_all_or_about_cursors() -> None:
    some = of(rule("me", Right.WRITE, partitions="0-4294967295")).write
    assert some.has(4_000_000_000)
    assert not some.everywhere
    assert not some.cursors
    assert of(rule("me", Right.WRITE, partitions="cursors")).write.cursors


def test_who_is_refused_is_told_who_he_is_and_what_he_lacks() -> None:
    error = Grants("jobs").denied(Right.WRITE, 3)
    assert error.fields == {"principal": "jobs", "right": "write", "partition_id": 3}
    assert (error.code, error.retryable, error.outcome) == ("permission_denied", False, "not_applied")
    assert "'jobs'" in error.message
    assert "`write` for partition 3" in error.message
    assert "names nobody" in Grants("").denied(Right.ADMIN).message
    assert Grants("").denied(Right.ADMIN).partition_id is None


def test_however_many_names_and_however_long_a_refusal_is_short() -> None:
    names = tuple(f"{number}" + "n" * 10_000 for number in range(500))
    assert len(str(of(rule("me", Right.READ), names=names).denied(Right.READ, 1))) < 1_000


def test_the_same_rules_have_the_same_digest_however_they_are_written_down() -> None:
    one, two = rule("a", Right.READ, Right.WRITE), rule("b", Right.ADMIN, partitions="3")
    assert Rules([one, two]).digest == Rules([two, rule("a", Right.WRITE, Right.READ)]).digest
    assert Rules([one]).digest != Rules([two]).digest != Rules([rule("b", Right.ADMIN, partitions="4")]).digest
    split = [rule("a", Right.READ, partitions="0-3"), rule("a", Right.READ, partitions="4")]
    assert Rules(split).digest == Rules([rule("a", Right.READ, partitions="4, 0,1-3")]).digest


# -- while the node runs


def test_the_file_of_the_moment_counts_unless_it_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certs, "LOOK_S", 0.0)
    told: list[str] = []
    path = file(tmp_path, "[[rules]]\nprincipal = 'me'\nallow = ['read']\n")
    rules = access.renewed(path, told.append)
    first = rules()
    assert rules() is first
    file(tmp_path, "[[rules]]\nprincipal = 'me'\nallow = ['write', 'reed']\n")
    assert [rules() is first for _ in range(3)] == [True] * 3
    path.unlink()
    assert [rules() is first for _ in range(3)] == [True] * 3
    assert [("reed" in each, "No such file" in each) for each in told] == [(True, False), (False, True)]
    file(tmp_path, "[[rules]]\nprincipal = 'me'\nallow = ['write']\n")
    assert [rules() is first for _ in range(2)] == [True, False]
    assert rules().of(["me"]).read == access.NOWHERE


def test_a_file_that_is_wrong_is_a_trouble_as_long_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Months later a node that is started again would not start."""
    monkeypatch.setattr(certs, "LOOK_S", 0.0)
    told: list[str] = []
    path, kept = file(tmp_path, "[[rules]]\nprincipal = 'me'\nallow = ['read']\n"), tmp_path / "kept.toml"
    rules = access.renewed(path, told.append)
    first = rules()
    assert rules.trouble == ""
    for _ in range(2):
        path.rename(kept)
        assert [rules() is first for _ in range(2)] == [True] * 2
        assert "No such file" in rules.trouble
        kept.rename(path)  # the very same, which is gone by already
        assert rules() is first
        assert rules.trouble == ""
    assert len(told) == 2


def test_a_file_that_is_being_written_is_not_taken_for_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose rule is not there yet would be cut, and told that he may not."""
    monkeypatch.setattr(certs, "LOOK_S", 0.0)
    one, other = (f"[[rules]]\nprincipal = '{name}'\nallow = ['read']\n" for name in ("me", "you"))
    path = file(tmp_path, other + one)
    rules = access.renewed(path, lambda _: None)
    for half in (other, other + one[:20], other + one):
        path.write_text(half + "# again")
        assert rules().of(["me"]).read == ALL
    assert rules().of(["me"]).read == ALL
    path.write_text(other)
    assert [rules().of(["me"]).read == ALL for _ in range(2)] == [True, False]


# -- certificates by name


def test_clients_get_certificates_of_their_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    where = tmp_path / "tls"
    assert run(capsys, "certs", "--dir", str(where), "--nodes", "n1", "--clients", "ops, jobs")[0] == 0
    for name in ("ops", "jobs"):
        own = where / "clients" / name
        assert {path.name for path in own.iterdir()} == {"ca.pem", "client.pem", "client.key"}
        assert certs.client_context(own).get_ca_certs() == certs.client_context(where).get_ca_certs()
    for name in ("..", "a/b", "n" * 65, "two words"):
        status, _, err = run(capsys, "certs", "--dir", str(tmp_path / "other"), "--nodes", "n1", "--clients", name)
        assert (status, "cannot be a client's name" in err) == (2, True)


def test_a_node_can_be_asked_whether_its_rules_are_fine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    certs.make_test_authority(tmp_path / "tls", ["n1"])
    rules, node = tmp_path / "rules.toml", tmp_path / "n1.toml"
    node.write_text(
        f'[cluster]\nmembers = "n1=a:1@a:2"\n[node]\nid = "n1"\ndata_dir = "d"\n'
        f'[tls]\ndirectory = "{tmp_path}/tls"\n[access]\nfile = "{rules}"\n'
    )
    check = ("node", "--config", str(node), "--check")
    rules.write_text("[[rules]]\nprincipal = 'ops'\nallow = ['admin']\n")
    assert run(capsys, *check)[0] == 0
    rules.write_text("[[rules]]\nprincipal = 'ops'\nallow = ['everything']\n")
    status, _, err = run(capsys, *check)
    assert (status, "rules[0].allow[0]" in err) == (2, True)
