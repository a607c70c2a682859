"""Language detection for texts and label words, by the frequent words of a language."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

_WORDS = {
    "English": "the and of to is was with not this that it are for yes no good bad great terrible "
    "positive negative neutral true false spam",
    "German": "der die das und ist nicht ein eine mit auf war es ja nein gut schlecht positiv "
    "negativ wahr falsch für sehr ich wir",
    "French": "le les des et est une pas que pour dans était c'est oui non bon mauvais positif "
    "négatif vrai faux très nous",
    "Spanish": "el los las y es una que por para con fue sí bueno malo buena mala positivo "
    "negativo verdadero falso muy pero",
    "Italian": "il gli e è una che per non con era sì buono cattivo positivo negativo vero falso "
    "molto sono della",
    "Portuguese": "o os as e é uma que não com para foi sim bom mau ruim positivo negativo "
    "verdadeiro falso muito são",
    "Dutch": "de het een en is niet van met was dat ja nee goed slecht positief negatief waar "
    "onwaar zeer wij",
}
QUESTIONS = {
    "English": " It was {word}.",
    "German": " Es war {word}.",
    "French": " C'était {word}.",
    "Spanish": " Era {word}.",
    "Italian": " Era {word}.",
    "Portuguese": " Era {word}.",
    "Dutch": " Het was {word}.",
}
"""A question about label words in each supported language."""
_MOST_TEXTS = 500
_LEAST_SHARE = 0.02


def language_of(texts: Iterable[str]) -> str:
    """Return the likely language of texts; empty if unclear.

    For scripts other than Latin, the result is the name of the script, such as "Cyrillic".

    Args:
        texts: texts, of which the first few hundred are used, or label words.
    """
    words: Counter[str] = Counter()
    letters: Counter[str] = Counter()
    for _, text in zip(range(_MOST_TEXTS), texts, strict=False):
        words.update(re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)?", text.lower()))
        letters.update(letter for letter in text if letter.isalpha())
    scripts: Counter[str] = Counter()
    for letter, count in letters.items():
        scripts[unicodedata.name(letter, "?").split()[0].capitalize()] += count
    if not scripts:
        return ""
    script = scripts.most_common(1)[0][0]
    if script != "Latin":
        return script
    found = {
        language: sum(words[word] for word in known.split()) for language, known in _WORDS.items()
    }
    best, second, *_ = sorted(found, key=found.__getitem__, reverse=True)
    clear = found[best] > found[second] and found[best] >= _LEAST_SHARE * words.total()
    return best if clear else ""
