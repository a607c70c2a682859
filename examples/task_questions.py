"""A task of your own, made by Python: the generated messages, asked about in other words.

A task file says the same without Python (docs/reference/tasks.md). An object is for programs that
make tasks, such as one that tries several questions.

    python examples/task_questions.py
"""

import samara
from samara.register import ClassificationTask

QUESTIONS = {
    "plain": " i {word} it.",
    "short": " {word} it.",
}


def task_with(question: str) -> ClassificationTask:
    """Return the task of the generated messages, whose name says which data it is about."""
    return ClassificationTask(
        name="messages",
        text="{text}",
        question=question,
        words=("hated", "loved"),
        labels=(("0",), ("1",)),
    )


def main(rounds: int = 5, clients: int = 4) -> dict[str, float]:
    """Run with each question, and print and return the accuracy of the base model on it."""
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
