"""Answer lists kept by hand: general kinds of answers, and what the sources lack or spell oddly.

Not here: anything a source package lists well; see `sources.py`.
"""

# Seats of government, recent changes and capitals of territories that GeoNames lists otherwise.
MORE_CAPITALS = """
Astana; Belfast; Bloemfontein; Bujumbura; Cape Town; Cardiff; Edinburgh; Kralendijk; La Paz; Lobamba;
Malabo; Naypyidaw; Ngerulmud; Ramallah; Sri Jayawardenepura Kotte
"""

# Languages beyond those that GeoNames lists first for a country, as CLDR codes.
MORE_LANGUAGE_CODES = """
af ak am as ay ba be bm bn bo br ceb ckb co cv cy dv dz ee eo eu fa ff fj fy ga gd gl gn grc gu gv ha haw hi hmn hr hy
ig ilo is iu jv ka kab kg ki kk km kn ko ks ku kw la lb lg ln lo lt lv mai mg mi mk ml mn mr ms mt my ne nl nn nb
nr nso nv oc om or os pa pap ps qu rm rn ro ru rw sa sah sc sd se sg si sk sl sn so sq sr ss st su sv sw ta te tg th ti
tk tl tn tpi tr ts tt ty ug uk ur uz ve vi war wo xh yi yo yue za zh zu
"""

# Names far commoner in English text than the ones CLDR uses, and dead languages that works are written in.
MORE_LANGUAGES = "Bengali; Chichewa; Sumerian"

# Currencies of the recent past, which models know as current.
MORE_CURRENCIES = "Bulgarian Lev; Croatian Kuna; Estonian Kroon; Latvian Lats; Lithuanian Litas; Zimbabwean Dollar"

# Countries by names other than CLDR's, and parts of countries that people are said to come from.
MORE_COUNTRIES = """
Bosnia and Herzegovina; Burma; Czech Republic; Democratic Republic of the Congo; East Timor; England; Hong Kong;
Ivory Coast; Macao; Macedonia; Myanmar; Northern Ireland; Palestine; Republic of the Congo; Scotland; Soviet Union;
Swaziland; Trinidad and Tobago; Turkey; Wales; Yugoslavia
"""

# Demonyms of `countryinfo` that nobody would write, and what stands for them.
DEMONYM_REPAIRS = {
    "Cape Verdian": "Cape Verdean",
    "Christmas Island": "Christmas Islander",
    "Comoran": "Comorian",
    "Djibouti": "Djiboutian",
    "Gibraltar": "Gibraltarian",
    "Guinea-Bissauan": "Bissau-Guinean",
    "Heard and McDonald Islander": "",
    "Kittian and Nevisian": "Kittitian,Nevisian",
    "Maldivan": "Maldivian",
    "Saint Vincentian": "Vincentian",
    "South Georgia and the South Sandwich Islander": "",
    "Surinamer": "Surinamese",
    "Vaticanian": "",
    "Wallis and Futuna Islander": "Wallisian,Futunan",
}

# Usual demonyms that `countryinfo` lacks or gives in another form.
MORE_DEMONYMS = """
Argentine; Basque; Catalan; Curacaoan; Ecuadorian; English; Icelandic; Kazakh; Kosovar; Kyrgyz; Luxembourgish; Saudi;
Scottish; Slovenian; Tajik; Timorese; Tobagonian; Uzbek; Welsh; Dane; Finn; Pole; Scot; Spaniard; Swede; Turk; Briton
"""

CONTINENTS = "Africa; Antarctica; Asia; Europe; North America; Oceania; South America"

OCCUPATIONS = """
actor; actress; architect; artist; astronaut; astronomer; athlete; author; baker; banker; biologist; bishop; boxer;
businessman; businesswoman; cellist; chef; chemist; choreographer; comedian; composer; computer scientist; conductor;
cricketer; cyclist; dancer; diplomat; director; doctor; economist; emperor; engineer; entrepreneur; explorer; farmer;
fashion designer; filmmaker; footballer; general; geographer; geologist; golfer; guitarist; historian; inventor;
journalist; judge; king; lawyer; linguist; mathematician; mechanic; model; monk; musician; novelist; nurse; painter;
philosopher; photographer; physician; physicist; pianist; pilot; playwright; poet; police officer; politician; pope;
president; priest; producer; professor; programmer; psychologist; queen; racing driver; rapper; sailor; scientist;
sculptor; singer; sociologist; soldier; songwriter; sprinter; surgeon; swimmer; teacher; tennis player; theologian;
violinist; writer
"""

COLORS = """
beige; black; blue; bronze; brown; cyan; gold; gray; green; indigo; magenta; maroon; orange; pink; purple; red; silver;
tan; turquoise; violet; white; yellow
"""

ANIMAL_CLASSES = """
amphibian; arachnid; bird; cephalopod; coral; crustacean; fish; insect; jellyfish; mammal; mollusk; reptile; sponge;
starfish; worm
"""

SPORTS = """
American football; athletics; badminton; baseball; basketball; bowling; boxing; chess; cricket; curling; cycling;
darts; diving; fencing; figure skating; football; golf; gymnastics; handball; hockey; ice hockey; judo; karate;
lacrosse; rowing; rugby; sailing; skateboarding; skiing; snooker; soccer; softball; squash; surfing; swimming;
table tennis; tennis; track and field; volleyball; water polo; weightlifting; wrestling
"""

INSTRUMENTS = """
accordion; bagpipes; banjo; bass; bass guitar; bassoon; cello; clarinet; double bass; drums; flute; guitar; harmonica;
harp; harpsichord; horn; keyboard; lute; lyre; mandolin; oboe; organ; percussion; piano; recorder; saxophone; sitar;
synthesizer; tabla; trombone; trumpet; tuba; ukulele; viola; violin; xylophone
"""

RELIGIONS = """
Anglicanism; Baha'i; Buddhism; Calvinism; Catholicism; Christianity; Confucianism; Hinduism; Islam; Jainism; Judaism;
Lutheranism; Orthodox Christianity; Protestantism; Rastafari; Roman Catholicism; Scientology; Shia Islam; Shinto;
Sikhism; Sunni Islam; Taoism; Vodou; Zoroastrianism
"""

GENRES = """
ambient; bluegrass; blues; classical; country; dance; disco; electronic; flamenco; folk; funk; gospel; grunge;
hard rock; heavy metal; hip hop; house; indie rock; jazz; metal; new wave; opera; pop; progressive rock; punk rock;
R&B; rap; reggae; rock; rock and roll; salsa; samba; ska; soul; swing; tango; techno; thrash metal; trance
"""

FIELDS = """
algebra; anatomy; anthropology; archaeology; architecture; art; astronomy; astrophysics; biochemistry; biology; botany;
chemistry; computer science; cosmology; ecology; economics; education; electricity; engineering; ethics; evolution;
genetics; geography; geology; geometry; history; immunology; law; linguistics; literature; logic; mathematics;
mechanics; medicine; meteorology; microbiology; music; neuroscience; nuclear physics; number theory; optics;
paleontology; philosophy; physics; physiology; political science; psychoanalysis; psychology; quantum mechanics;
radioactivity; sociology; statistics; theology; thermodynamics; zoology
"""

MATERIALS = """
aluminum; bamboo; brass; bread; bronze; cardboard; cement; ceramic; clay; concrete; copper; cotton; diamond; fabric;
flour; fur; glass; gold; grapes; ice; iron; ivory; leather; lead; linen; marble; metal; milk; nylon; paper; plastic;
porcelain; rubber; sand; silk; silver; steel; stone; straw; titanium; wax; wheat; wood; wool
"""


def items(text):
    """The items of a list above; separated by `;`."""
    return [item for item in (" ".join(part.split()) for part in text.split(";")) if item]
