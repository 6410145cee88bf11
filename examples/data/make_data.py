"""Write world.db and discoveries/ beside this file, from the facts below. Needs the package `datasets`.

elements.csv is edited by hand. Areas are rounded to two significant figures, since almanacs differ in the
third.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

HERE = Path(__file__).resolve().parent

COUNTRIES = [
    # code, name, capital, area in km2, fact
    ("AU", "Australia", "Canberra", 7_700_000,
     "Canberra was built as the capital of Australia, as a compromise between Sydney and Melbourne."),
    ("BR", "Brazil", "Brasília", 8_500_000,
     "Brazil is the largest country of South America, and its official language is Portuguese."),
    ("CA", "Canada", "Ottawa", 10_000_000,
     "Canada has the longest coastline of all countries."),
    ("CL", "Chile", "Santiago", 760_000,
     "The Atacama, the driest desert outside the polar regions, lies mostly in Chile."),
    ("EG", "Egypt", "Cairo", 1_000_000,
     "The Great Pyramid of Giza in Egypt was built as the tomb of the pharaoh Khufu."),
    ("FI", "Finland", "Helsinki", 340_000,
     "Finland declared its independence from Russia in 1917."),
    ("GR", "Greece", "Athens", 130_000,
     "The first modern Olympic Games were held in Athens, the capital of Greece, in 1896."),
    ("IN", "India", "New Delhi", 3_300_000,
     "The Taj Mahal in India was built by the emperor Shah Jahan for his wife Mumtaz Mahal."),
    ("IS", "Iceland", "Reykjavík", 100_000,
     "Reykjavík, the capital of Iceland, is the northernmost capital of a sovereign state."),
    ("JP", "Japan", "Tokyo", 380_000,
     "Mount Fuji, 3,776 metres high, is the highest mountain of Japan."),
    ("KE", "Kenya", "Nairobi", 580_000,
     "The equator passes through Kenya."),
    ("KZ", "Kazakhstan", "Astana", 2_700_000,
     "Kazakhstan is the largest landlocked country in the world."),
    ("LS", "Lesotho", "Maseru", 30_000,
     "Lesotho is completely surrounded by one other country, South Africa."),
    ("MG", "Madagascar", "Antananarivo", 590_000,
     "Madagascar lies on the fourth-largest island in the world."),
    ("MN", "Mongolia", "Ulaanbaatar", 1_600_000,
     "Mongolia has only two neighbours, Russia and China."),
    ("MX", "Mexico", "Mexico City", 2_000_000,
     "Mexico City, the capital of Mexico, stands where the Aztec capital Tenochtitlan stood."),
    ("NP", "Nepal", "Kathmandu", 150_000,
     "The flag of Nepal is the only national flag that does not have four sides."),
    ("PE", "Peru", "Lima", 1_300_000,
     "Machu Picchu, a citadel of the Incas in the Andes, is in Peru."),
    ("PT", "Portugal", "Lisbon", 92_000,
     "Cabo da Roca in Portugal is the westernmost point of the mainland of Europe."),
    ("TH", "Thailand", "Bangkok", 510_000,
     "Thailand was formerly called Siam."),
]  # fmt: skip

FIELDS = ["astronomy", "biology", "chemistry", "engineering", "medicine", "physics"]

DISCOVERIES = [
    # id, name, people, year, field, fact
    ("uranus", "the planet Uranus", ["William Herschel"], 1781, "astronomy",
     "William Herschel discovered the planet Uranus with his own telescope in 1781."),
    ("hot-air-balloon", "the hot-air balloon",
     ["Joseph-Michel Montgolfier", "Jacques-Étienne Montgolfier"], 1783, "engineering",
     "In 1783 people flew freely for the first time, in a hot-air balloon of the Montgolfier brothers."),
    ("smallpox-vaccine", "the smallpox vaccine", ["Edward Jenner"], 1796, "medicine",
     "Edward Jenner made the first smallpox vaccine in 1796, from cowpox."),
    ("battery", "the electric battery", ["Alessandro Volta"], 1800, "physics",
     "Alessandro Volta announced the first electric battery in 1800; the volt is named after him."),
    ("steam-locomotive", "the steam locomotive", ["Richard Trevithick"], 1804, "engineering",
     "In 1804 a steam locomotive of Richard Trevithick pulled a train for the first time, in Wales."),
    ("stethoscope", "the stethoscope", ["René Laennec"], 1816, "medicine",
     "René Laennec invented the stethoscope in 1816, to listen to the heart and the lungs."),
    ("dynamite", "dynamite", ["Alfred Nobel"], 1867, "chemistry",
     "Alfred Nobel, who founded the Nobel Prizes, patented dynamite in 1867."),
    ("periodic-table", "the periodic table", ["Dmitri Mendeleev"], 1869, "chemistry",
     "Dmitri Mendeleev published his periodic table in 1869, with gaps for elements not yet found."),
    ("telephone", "the telephone", ["Alexander Graham Bell"], 1876, "engineering",
     "Alexander Graham Bell received a patent for the telephone in 1876."),
    ("phonograph", "the phonograph", ["Thomas Edison"], 1877, "engineering",
     "Thomas Edison invented the phonograph in 1877, the first machine that played recorded sound."),
    ("x-rays", "X-rays", ["Wilhelm Conrad Röntgen"], 1895, "physics",
     "Wilhelm Conrad Röntgen discovered X-rays in 1895, and received the first Nobel Prize in Physics."),
    ("radioactivity", "radioactivity", ["Henri Becquerel"], 1896, "physics",
     "Henri Becquerel discovered radioactivity in 1896, while he studied salts of uranium."),
    ("electron", "the electron", ["Joseph John Thomson"], 1897, "physics",
     "Joseph John Thomson discovered the electron in 1897, in experiments with cathode rays."),
    ("aeroplane", "the powered aeroplane", ["Orville Wright", "Wilbur Wright"], 1903, "engineering",
     "The first flight of the Wright brothers' powered aeroplane in 1903 lasted 12 seconds."),
    ("insulin", "insulin", ["Frederick Banting", "Charles Best"], 1921, "medicine",
     "Frederick Banting and Charles Best isolated insulin in Toronto in 1921; it treats diabetes."),
    ("penicillin", "penicillin", ["Alexander Fleming"], 1928, "medicine",
     "Alexander Fleming discovered penicillin in 1928, when mould killed the bacteria in a dish."),
    ("transistor", "the transistor", ["John Bardeen", "Walter Brattain"], 1947, "physics",
     "John Bardeen and Walter Brattain built the first working transistor at Bell Labs in 1947."),
    ("double-helix", "the structure of DNA", ["James Watson", "Francis Crick"], 1953, "biology",
     "James Watson and Francis Crick described DNA as a double helix in 1953."),
    ("rubiks-cube", "Rubik's Cube", ["Ernő Rubik"], 1974, "engineering",
     "Ernő Rubik, a Hungarian teacher of architecture, invented his cube in 1974."),
    ("web", "the World Wide Web", ["Tim Berners-Lee"], 1989, "engineering",
     "Tim Berners-Lee proposed the World Wide Web in 1989, while he worked at CERN."),
]  # fmt: skip


def write_world(path: Path) -> None:
    """Write the table `country` into a new SQLite database."""
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE country (code TEXT PRIMARY KEY, name TEXT NOT NULL, capital TEXT NOT NULL, "
        "area_km2 INTEGER NOT NULL, text TEXT NOT NULL)"
    )
    connection.executemany("INSERT INTO country VALUES (?, ?, ?, ?, ?)", COUNTRIES)
    connection.commit()
    connection.execute("VACUUM")
    connection.close()


def write_discoveries(folder: Path) -> None:
    """Write the discoveries as `datasets.save_to_disk` does, in two shards."""
    from datasets import ClassLabel, Dataset, Features, List, Value

    features = Features(
        {
            "id": Value("string"),
            "name": Value("string"),
            "people": List(Value("string")),
            "year": Value("int32"),
            "field": ClassLabel(names=FIELDS),
            "text": Value("string"),
        }
    )
    columns = dict(zip(features, map(list, zip(*DISCOVERIES, strict=True)), strict=True))
    shutil.rmtree(folder, ignore_errors=True)
    Dataset.from_dict(columns, features=features).save_to_disk(folder, num_shards=2)


if __name__ == "__main__":
    write_world(HERE / "world.db")
    write_discoveries(HERE / "discoveries")
