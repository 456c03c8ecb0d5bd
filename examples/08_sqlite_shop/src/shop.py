"""What the clerk can do, the tasks, and the reward: whether the database is in the wanted state at the end."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import numpy as np
from database import NOW, Customer, Line, Order, Product, Sale, database
from pydantic import Field
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from aenv import ToolResult, private, register_function, register_reward, register_tasks, register_tool

Count = Annotated[int, Field(ge=1, le=1000)]


@dataclass
class Found:
    id: int
    name: str
    price: Decimal
    stock: int


@dataclass
class Wanted:
    product_id: int
    count: Count


@dataclass
class Receipt:
    order_id: int
    status: Literal["open", "cancelled"]
    placed_at: datetime
    total: Decimal


@dataclass
class Forecast:
    product_id: int
    units: list[float]
    """Expected units for each of the coming weeks."""
    weeks_of_stock: float


@register_tool
def search_products(text: str = "", max_price: Decimal | None = None, in_stock: bool = False) -> list[Found]:
    """Search the shop's products.

    Args:
        text: A part of the name; empty: all products.
        max_price: Highest price of one, in euros.
        in_stock: Only products that are in stock.
    """
    with database.session() as session:
        rows = session.scalars(select(Product).where(Product.name.contains(text, autoescape=True)).order_by(Product.id))
        found = [Found(row.id, row.name, Decimal(row.cents) / 100, row.stock) for row in rows]
    return [one for one in found if (max_price is None or one.price <= max_price) and (one.stock > 0 or not in_stock)]


@register_tool
def find_customer(email: str) -> dict[str, Any]:
    """Find a customer and their orders by e-mail address."""
    with database.session() as session:
        customer = session.scalars(select(Customer).where(Customer.email == email)).one_or_none()
        if customer is None:
            raise LookupError(f"no customer has the address {email}")
        orders = session.scalars(select(Order).where(Order.customer_id == customer.id).order_by(Order.id))
        return {"id": customer.id, "name": customer.name, "orders": [receipt(order) for order in orders]}


@register_tool
def place_order(customer_id: int, lines: list[Wanted]) -> ToolResult:
    """Place an order. Either all of it is ordered, or nothing.

    Args:
        customer_id: The customer, as `find_customer` gives it.
        lines: What to order, and how many of each.
    """
    with database.session() as session, session.begin():
        if session.get(Customer, customer_id) is None:
            return refused(f"there is no customer {customer_id}")
        order = Order(customer_id=customer_id, placed_at=NOW, status="open")
        for line in lines:
            product = session.get(Product, line.product_id)
            if product is None or not take(session, product.id, line.count):
                session.rollback()
                return refused(f"product {line.product_id} does not exist or has fewer than {line.count} in stock")
            order.lines.append(Line(product_id=product.id, count=line.count, cents=product.cents))
        if not order.lines:
            return refused("an order needs at least one line")
        session.add(order)
        session.flush()
        done = receipt(order)
    return ToolResult(
        [{"type": "text", "text": f"Order {done.order_id} is placed: {done.total} euros."}],
        structured={"order_id": done.order_id, "total": str(done.total)},
    )


@register_tool
def cancel_order(order_id: int) -> Receipt:
    """Cancel an open order, and put its products back into stock."""
    with database.session() as session, session.begin():
        changed = session.execute(
            update(Order).where(Order.id == order_id, Order.status == "open").values(status="cancelled")
        )
        if changed.rowcount != 1:
            raise LookupError(f"there is no open order {order_id}")
        order = session.get_one(Order, order_id)
        for line in order.lines:
            session.execute(
                update(Product).where(Product.id == line.product_id).values(stock=Product.stock + line.count)
            )
        return receipt(order)


@register_tool
def forecast(product_id: int, weeks: Annotated[int, Field(ge=1, le=12)] = 4) -> Forecast:
    """Forecast sales of the coming weeks by a linear fit of the past ones.

    Args:
        product_id: The product.
        weeks: Number of weeks to look ahead.
    """
    with database.session() as session:
        product = session.get(Product, product_id)
        sold = session.scalars(select(Sale.units).where(Sale.product_id == product_id).order_by(Sale.week)).all()
    if product is None:
        raise LookupError(f"there is no product {product_id}")
    slope, start = np.polyfit(np.arange(len(sold)), np.array(sold), 1)
    units = np.clip(start + slope * np.arange(len(sold), len(sold) + weeks), 0, None).round(1)
    return Forecast(product_id, units, np.float64(product.stock / max(units.mean(), 0.1)).round(2))


@register_tool
def restock(product_id: int, count: Count) -> dict[str, int]:
    """Order more of a product from its supplier; it arrives at once."""
    with database.session() as session, session.begin():
        product = session.get(Product, product_id)
        if product is None:
            raise LookupError(f"there is no product {product_id}")
        product.stock += count
        return {"product_id": product.id, "stock": product.stock}


@register_function
def reset() -> None:
    """Start over with the shop as it was."""
    database.reset()


@register_function
def state() -> dict[str, Any]:
    """The state that counts: stock by product, and the orders that are open."""
    with database.session() as session:
        stock = {product.name: product.stock for product in session.scalars(select(Product))}
        names = {product.id: product.name for product in session.scalars(select(Product))}
        people = {customer.id: customer.email for customer in session.scalars(select(Customer))}
        orders = [
            {
                "customer": people[order.customer_id],
                "lines": {names[line.product_id]: line.count for line in order.lines},
            }
            for order in session.scalars(select(Order).where(Order.status == "open").order_by(Order.id))
        ]
    return {"stock": stock, "open_orders": orders}


@register_reward
def as_wanted(task: str) -> dict[str, Any]:
    """1 when the database is in just the state that the task wants, else 0, with what is different."""
    wanted = json.loads(private("wanted.json").read_text())[task]
    found = state()
    wrong = [part for part in wanted if found[part] != wanted[part]]
    return {"score": 0.0 if wrong else 1.0, "wrong": wrong}


@register_tasks
def tasks() -> Iterator[dict[str, Any]]:
    """The clerk's tasks."""
    for task in json.loads(private("tasks.json").read_text()):
        yield {
            **task,
            "setup": {"function": "reset"},
            "reward": {"name": "as_wanted", "arguments": {"task": task["id"]}},
        }


def take(session: Session, product_id: int, count: int) -> bool:
    """Take products out of stock, unless there are too few; in one statement, as calls may run at the same time."""
    left = update(Product).where(Product.id == product_id, Product.stock >= count).values(stock=Product.stock - count)
    return session.execute(left).rowcount == 1


def receipt(order: Order) -> Receipt:
    total = Decimal(sum(line.cents * line.count for line in order.lines)) / 100
    return Receipt(order.id, order.status, order.placed_at, total)


def refused(reason: str) -> ToolResult:
    """A refusal is part of the game and not an error of the environment, so it is returned and not raised."""
    return ToolResult([{"type": "text", "text": f"Not ordered: {reason}."}], is_error=True)
