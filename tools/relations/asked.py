"""What each relation asks: its name, its type of answer, its templates and some true examples.

Not here: the answers; see `sources.py` and `curated.py`.

`{e}` is the entity; a template ends where the answer follows after one space. The plainest comes first.
"""

# (name, type, templates, examples)
RELATIONS = [
    (
        "capital",
        "city",
        [
            "The capital of {e} is",
            "{e}'s capital city is",
            "The capital city of {e} is called",
            "Q: What is the capital of {e}? A:",
        ],
        [["Italy", "Rome"], ["Kenya", "Nairobi"], ["South Korea", "Seoul"]],
    ),
    (
        "continent",
        "continent",
        [
            "The continent of {e} is",
            "{e} is a country in",
            "{e} lies on the continent of",
            "Q: On which continent is {e}? A:",
        ],
        [["Colombia", "South America"], ["Kenya", "Africa"], ["Spain", "Europe"]],
    ),
    (
        "language",
        "language",
        [
            "The official language of {e} is",
            "In {e}, people speak",
            "Most people in {e} speak",
            "Q: What language is spoken in {e}? A:",
        ],
        [["Greece", "Greek"], ["Italy", "Italian"], ["Russia", "Russian"]],
    ),
    (
        "currency",
        "currency",
        [
            "The currency of {e} is the",
            "In {e}, people pay with the",
            "Q: What is the currency of {e}? A: the",
            "Prices in {e} are given in the",
        ],
        [["Italy", "Euro"], ["Kenya", "Kenyan Shilling"], ["Russia", "Russian Ruble"]],
    ),
    (
        "demonym",
        "demonym",
        [
            "A person from {e} is called",
            "Someone born in {e} is",
            "Q: What do you call a person from {e}? A:",
            "The demonym of {e} is",
        ],
        [["Italy", "Italian"], ["Kenya", "Kenyan"], ["Russia", "Russian"]],
    ),
    (
        "located in",
        "country",
        [
            "{e} is located in",
            "{e} is a city in",
            "The city of {e} is located in",
            "Q: In which country is {e}? A:",
        ],
        [["Alexandria", "Egypt"], ["Toronto", "Canada"], ["Osaka", "Japan"]],
    ),
    (
        "symbol",
        "symbol",
        [
            "The chemical symbol of {e} is",
            "Chemists write {e} as",
            "Q: What is the symbol of {e}? A:",
            "The symbol of {e} is",
        ],
        [["hydrogen", "H"], ["iron", "Fe"], ["oxygen", "O"]],
    ),
    (
        "atomic number",
        "number",
        [
            "The atomic number of {e} is",
            "Q: What is the atomic number of {e}? A:",
            "An atom of {e} has",
        ],
        [["carbon", "6"], ["hydrogen", "1"], ["oxygen", "8"]],
    ),
    (
        "animal class",
        "animal class",
        [
            "The {e} is a type of",
            "The {e} is not a plant, it is a",
            "A frog is an amphibian, an ant is an insect, and a {e} is a",
            "Q: What kind of animal is the {e}? A: It is a",
        ],
        [["dog", "mammal"], ["eagle", "bird"], ["salmon", "fish"]],
    ),
    (
        "author",
        "person",
        [
            "{e} was written by",
            "{e} is a work by the writer",
            "Q: Who wrote {e}? A: It was written by",
            "Emma was written by Jane Austen, and {e} was written by",
        ],
        [["Hamlet", "William Shakespeare"], ["Les Miserables", "Victor Hugo"], ["The Hobbit", "J. R. R. Tolkien"]],
    ),
    (
        "born in",
        "country",
        [
            "{e} was born in the country of",
            "{e} is originally from",
            "{e} is a native of",
            "Q: In which country was {e} born? A: In",
        ],
        [["Bob Marley", "Jamaica"], ["Frida Kahlo", "Mexico"], ["Johannes Kepler", "Germany"]],
    ),
    (
        "color",
        "color",
        [
            "The color of {e} is",
            "The usual color of {e} is",
            "The color of the sky is blue, and the color of {e} is",
            "Q: What is the color of {e}? A: The color is",
        ],
        [["blood", "red"], ["grass", "green"], ["snow", "white"]],
    ),
    (
        "field",
        "field",
        [
            "{e} worked in the field of",
            "The academic field of {e} is",
            "{e} is known for contributions to the field of",
            "Q: What did {e} study? A: The field of",
        ],
        [["Adam Smith", "economics"], ["Carl Friedrich Gauss", "mathematics"], ["Johannes Kepler", "astronomy"]],
    ),
    (
        "founder",
        "person",
        [
            "{e} was founded by",
            "The organization {e} was founded by",
            "The company {e} was started by",
            "Q: Who founded {e}? A: It was founded by",
        ],
        [["Amazon", "Jeff Bezos"], ["Facebook", "Mark Zuckerberg"], ["Ford", "Henry Ford"]],
    ),
    (
        "genre",
        "genre",
        [
            "{e} made music in the genre of",
            "The style of music that {e} played was",
            "The music of {e} is a kind of",
            "Q: What kind of music did {e} play? A: They played",
        ],
        [["Bob Marley", "reggae"], ["Louis Armstrong", "jazz"], ["Metallica", "heavy metal"]],
    ),
    (
        "headquarters",
        "city",
        [
            "{e} is headquartered in",
            "The headquarters of {e} are in the city of",
            "{e} has its headquarters in the city of",
            "Q: Where is {e} based? A: It is based in",
        ],
        [["Microsoft", "Redmond"], ["Nestle", "Vevey"], ["Toyota", "Toyota City"]],
    ),
    (
        "instrument",
        "instrument",
        [
            "{e} plays the",
            "{e} is a famous player of the",
            "On stage, {e} played the",
            "Q: Which instrument does {e} play? A: The instrument is the",
        ],
        [["Jimi Hendrix", "guitar"], ["Miles Davis", "trumpet"], ["Yo-Yo Ma", "cello"]],
    ),
    (
        "made of",
        "material",
        [
            "{e} is made of",
            "{e} is usually made of",
            "A tire is made of rubber, and {e} is made of",
            "Q: What is {e} made of? A: It is made of",
        ],
        [["paper", "wood"], ["a window", "glass"], ["a sweater", "wool"]],
    ),
    (
        "occupation",
        "occupation",
        [
            "{e} worked as a",
            "{e} earned a living as a",
            "{e} was a professional",
            "{e}'s job was that of a",
        ],
        [["Frida Kahlo", "painter"], ["Johannes Brahms", "composer"], ["Socrates", "philosopher"]],
    ),
    (
        "opposite",
        "word",
        [
            "The opposite of {e} is",
            "{e} is the opposite of",
            "The opposite of up is down, and the opposite of {e} is",
            "Q: What is the opposite of {e}? A:",
        ],
        [["big", "small"], ["hot", "cold"], ["light", "dark"]],
    ),
    (
        "original language",
        "language",
        [
            "The original language of {e} is",
            "{e} was translated from the original",
            "Q: In which language was {e} written? A:",
            "Q: What is the original language of {e}? A: The language is",
        ],
        [["Don Quixote", "Spanish"], ["Hamlet", "English"], ["War and Peace", "Russian"]],
    ),
    (
        "past tense",
        "word",
        [
            "The past tense of {e} is",
            "Today I {e}; yesterday I",
            "Today they walk, yesterday they walked. Today they {e}, yesterday they",
            "The past tense of come is came. The past tense of {e} is",
        ],
        [["go", "went"], ["see", "saw"], ["write", "wrote"]],
    ),
    (
        "plural",
        "word",
        [
            "The plural of {e} is",
            "One cat, two cats; one {e}, two",
            "The plural of cat is cats, and the plural of {e} is",
            "The plural of foot is feet. The plural of {e} is",
        ],
        [["child", "children"], ["house", "houses"], ["mouse", "mice"]],
    ),
    (
        "religion",
        "religion",
        [
            "The main religion in {e} is",
            "The most common religion in {e} is",
            "The state religion of {e} is",
            "Q: What is the main religion in {e}? A: The main religion is",
        ],
        [["Cambodia", "Buddhism"], ["Indonesia", "Islam"], ["Israel", "Judaism"]],
    ),
    (
        "sport",
        "sport",
        [
            "{e} plays the sport of",
            "{e} is famous for playing",
            "{e} is a star of professional",
            "Q: Which sport does {e} play? A: The sport is",
        ],
        [["LeBron James", "basketball"], ["Serena Williams", "tennis"], ["Tiger Woods", "golf"]],
    ),
]
