"""What the tasks of the sites want. Each is an instruction, and what must be done to a copy of the site.

The copy is compared with the site that the agent left, all of it: what should not have changed counts too.
"""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from sites import shop, tickets, wiki


class Goal(NamedTuple):
    instruction: str
    do: Callable[[Any], None]
    """Does the task on the site; nothing when only an answer is asked for."""
    answer: str = ""


Chance = random.Random


def _nothing(site: Any) -> None:
    pass


def _buy(site: shop.Shop, chance: Chance) -> Goal:
    product = chance.choice(site.state.rows("SELECT * FROM products WHERE stock >= 3 ORDER BY id"))
    count, way = chance.randint(1, 3), chance.choice(sorted(shop.SHIPPING))
    name, street, city = "Sam Porter", f"High Street {chance.randint(2, 99)}", chance.choice(("Leeds", "Bath", "York"))

    def do(shop_: shop.Shop) -> None:
        shop_.add(product["id"], count)
        shop_.order(name, street, city, way, "SPRING10")

    return Goal(
        f"Order {count} of {product['name']!r} with {way} shipping to {name}, {street}, {city}. "
        "Use the coupon SPRING10. Order nothing else.", do)  # fmt: skip


def _cheapest(site: shop.Shop, chance: Chance) -> Goal:
    category = chance.choice(sorted(shop.CATEGORIES))
    found = site.state.rows("SELECT * FROM products WHERE category = ? AND stock > 0 ORDER BY price, id", category)
    return Goal(
        f"Put one of the cheapest product of the category {category} that is in stock into the cart. Do not order it.",
        lambda shop_: shop_.add(found[0]["id"], 1),
    )


def _cancel(site: shop.Shop, chance: Chance) -> Goal:
    number = chance.choice(site.state.rows("SELECT id FROM orders WHERE status = 'open' ORDER BY id"))["id"]
    return Goal(f"Cancel order {number}.", lambda shop_: shop_.cancel(number))


def _review(site: shop.Shop, chance: Chance) -> Goal:
    product = chance.choice(site.state.rows("SELECT * FROM products ORDER BY id"))
    stars, text = chance.randint(1, 5), chance.choice(("Works well", "Broke after a day", "As described"))
    return Goal(
        f"Give {product['name']!r} a review with {stars} stars and the text: {text}",
        lambda shop_: shop_.review(product["id"], stars, text),
    )


def _price(site: shop.Shop, chance: Chance) -> Goal:
    product = chance.choice(site.state.rows("SELECT * FROM products ORDER BY id"))
    question = f"What does {product['name']!r} cost, in EUR? Answer with the number only."
    return Goal(question, _nothing, f"{product['price'] / 100:.2f}")


def _new_ticket(site: tickets.Tickets, chance: Chance) -> Goal:
    title, text = f"The {chance.choice(('map', 'menu', 'clock'))} is upside down", "Seen on the start page."
    priority, label = chance.choice(tickets.PRIORITIES), chance.choice(tickets.LABELS)
    return Goal(
        f"Create a ticket with the title {title!r}, the text {text!r}, priority {priority} and the label {label}.",
        lambda tickets_: tickets_.create(title, text, priority, label) and None,
    )


def _assign(site: tickets.Tickets, chance: Chance) -> Goal:
    label, person = chance.choice(tickets.LABELS), chance.choice(tickets.PEOPLE[1:])
    numbers = [row["ticket"] for row in site.state.rows("SELECT ticket FROM labels WHERE label = ?", label)]

    def do(tickets_: tickets.Tickets) -> None:
        for number in numbers:
            tickets_.change(number, assignee=person)

    return Goal(f"Assign every ticket with the label {label} to {person}.", do)


def _comment(site: tickets.Tickets, chance: Chance) -> Goal:
    ticket = chance.choice(site.state.rows("SELECT * FROM tickets ORDER BY id"))
    text = chance.choice(("Needs more detail.", "Seen here as well.", "Please test again."))
    return Goal(f"Write the comment {text!r} on the ticket {ticket['title']!r}.",
                lambda tickets_: tickets_.comment(ticket["id"], text))  # fmt: skip


def _move(site: tickets.Tickets, chance: Chance) -> Goal:
    ticket = chance.choice(site.state.rows("SELECT * FROM tickets WHERE status <> 'done' ORDER BY id"))
    return Goal(f"On the board, move ticket {ticket['id']} to done.",
                lambda tickets_: tickets_.change(ticket["id"], status="done"))  # fmt: skip


def _duplicate(site: tickets.Tickets, chance: Chance) -> Goal:
    first, second = sorted(chance.sample([row["id"] for row in site.state.rows("SELECT id FROM tickets")], 2))
    return Goal(f"Close ticket {second} as a duplicate of ticket {first}.",
                lambda tickets_: tickets_.close_as_duplicate(second, first))  # fmt: skip


def _population(site: wiki.Wiki, chance: Chance) -> Goal:
    town = chance.choice([each for each in wiki.TOWNS if site.text(each) != wiki.NONSENSE])
    old = next(line for line in site.text(town).split("\n") if line.startswith("Population"))
    text, new, summary = site.text(town), f"Population: {chance.randrange(900, 60000)}", "new census"
    return Goal(f"The page {town} must say '{new}' instead of '{old}'. Save it with the summary {summary!r}.",
                lambda wiki_: wiki_.write(town, text.replace(old, new), summary))  # fmt: skip


def _restore(site: wiki.Wiki, chance: Chance) -> Goal:
    town = next(each for each in wiki.TOWNS if site.text(each) == wiki.NONSENSE)
    return Goal("One page about a town was replaced by nonsense. Revert it to the version before.",
                lambda wiki_: wiki_.revert(town, 1))  # fmt: skip


def _new_page(site: wiki.Wiki, chance: Chance) -> Goal:
    town, name = chance.choice(wiki.TOWNS), f"{chance.choice(('Old', 'New', 'Upper'))} Mill"
    text, summary = f"{name} is a mill near [[{town}]].", "a new page"
    return Goal(f"Write a new page with the title {name!r} and exactly this text: {text} The summary is {summary!r}.",
                lambda wiki_: wiki_.write(name, text, summary))  # fmt: skip


def _rename(site: wiki.Wiki, chance: Chance) -> Goal:
    river = chance.choice(wiki.RIVERS)
    return Goal(f"Rename the page {river} to 'River {river}'.", lambda wiki_: wiki_.rename(river, f"River {river}"))


def _mayor(site: wiki.Wiki, chance: Chance) -> Goal:
    town = chance.choice([each for each in wiki.TOWNS if site.text(each) != wiki.NONSENSE])
    mayor = next(line for line in site.text(town).split("\n") if line.startswith("Mayor")).removeprefix("Mayor: ")
    return Goal(f"Who is the mayor of {town}? Answer with the full name only.", _nothing, mayor)


KINDS: dict[str, dict[str, Callable[[Any, Chance], Goal]]] = {
    "shop": {"buy": _buy, "cheapest": _cheapest, "cancel": _cancel, "review": _review, "price": _price},
    "tickets": {"create": _new_ticket, "assign": _assign, "comment": _comment, "move": _move, "duplicate": _duplicate},
    "wiki": {"population": _population, "restore": _restore, "write": _new_page, "rename": _rename, "mayor": _mayor},
}


def goal(site: str, kind: str, seed: int, made: Any) -> Goal:
    """Return what a task wants, for a site as it is at the beginning."""
    return KINDS[site][kind](made, random.Random(f"{site} {kind} {seed}"))
