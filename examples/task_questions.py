"""A custom task, made in Python: the generated messages with another question.

A task file does the same without Python (docs/reference/tasks.md). A task object is for programs
that make tasks, such as a program that tries several questions.

    python examples/task_questions.py
"""

import samara
from samara.register import ClassificationTask

QUESTIONS = {
    "plain": " i {word} it.",
    "short": " {word} it.",
}


def task_with(question: str) -> ClassificationTask:
    """Return the task of the generated messages with a given question.

    The task's name, ``messages``, selects the generated data.
    """
    return ClassificationTask(
        name="messages",
        text="{text}",
        question=question,
        words=("hated", "loved"),
        labels=(("0",), ("1",)),
    )


def main(rounds: int = 5, clients: int = 4) -> dict[str, float]:
    """Run with each question, and print and return the base model's accuracy by question."""
    accuracies = {}
    for name, question in QUESTIONS.items():
        samara.register.task(name, task_with(question))
        run = samara.simulate(
            {"rounds": rounds, "data.clients": clients, "personal.rounds": 0}, task=name
        )
        frame = run.to_frame()
        accuracies[name] = float(frame[frame["model"] == "zero-shot"]["accuracy"].mean())
        print(f"{name}: zero-shot {accuracies[name]:.1%}")
    return accuracies


if __name__ == "__main__":
    main()
