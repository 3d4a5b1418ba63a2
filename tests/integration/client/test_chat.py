"""`pagemill chat` against a real server: its commands, its temperature, and what a terminal shows."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner, Result

from pagemill.cli.app import app
from pagemill.cli.chat import HELP
from pagemill.cli.temperature import TALKING, for_talking
from pagemill.v1 import model_pb2
from support.fake_service import FakeServer
from support.terminal import Terminal

PROMPT = "> \x1b[0m"
"""What readline writes once it reads: what is typed earlier may be echoed, or its Ctrl-C taken, by something else."""


def chat(fake: FakeServer, *arguments: str, stdin: str) -> Result:
    return CliRunner().invoke(app, ["chat", "-t", fake.address, *arguments], input=stdin)


def test_a_model_without_defaults_is_talked_to_at_a_temperature_fit_for_it(fake: FakeServer) -> None:
    chat(fake, stdin="one\n")
    chat(fake, "--temperature", "0.9", stdin="one\n")
    assert [r.sampling.temperature for r in fake.requests] == pytest.approx([TALKING, 0.9])


def test_a_model_with_a_default_of_its_own_keeps_it() -> None:
    model = model_pb2.Model(sampling_defaults=model_pb2.SamplingDefaults(temperature=0.7))
    assert for_talking({"max_tokens": 3}, model) == {"max_tokens": 3}
    assert for_talking({"temperature": 0.0}, model_pb2.Model()) == {"temperature": 0.0}, "greedy was asked for"
    assert for_talking({}, model_pb2.Model()) == {"temperature": TALKING}


def test_a_command_with_text_that_it_does_not_take_does_nothing(fake: FakeServer) -> None:
    result = chat(fake, stdin="one\n/reset now\n/exit now\ntwo\n")
    assert len(fake.requests[1].chat.messages) == 3, "nothing is forgotten"
    assert "/reset takes no text" in result.stderr
    assert "/exit takes no text" in result.stderr


def test_help_fits_80_columns() -> None:
    assert max(map(len, HELP.splitlines())) < 80


def test_ctrl_c_at_a_prompt_with_text_leaves_the_text_a_line_of_its_own(fake: FakeServer) -> None:
    terminal = Terminal("chat", "-t", fake.address)
    terminal.expect(PROMPT)
    terminal.type("half a question")
    terminal.expect("half a question")
    terminal.interrupt("/exit or Ctrl-D leaves.")
    assert "\r\n" in terminal.seen.partition("/exit")[0]
    terminal.expect(PROMPT)
    terminal.type("/exit\n")
    terminal.leave()


def test_an_answer_on_a_terminal_breaks_between_words(fake: FakeServer) -> None:
    terminal = Terminal("chat", "-t", fake.address, columns=10)
    terminal.expect(PROMPT)
    terminal.type("hi\n")
    terminal.expect("\x1b[8G\x1b[K\r\nworld")
    terminal.expect(PROMPT)
    terminal.type("/exit\n")
    terminal.leave()
