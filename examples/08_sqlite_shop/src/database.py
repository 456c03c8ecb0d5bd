"""The tables of the shop and the data that every episode starts with.

Nothing is opened when this module is imported, so that instances can be forks of a process that has imported it.
"""

import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import CheckConstraint, Engine, ForeignKey, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

NOW = datetime(2026, 3, 2, 9, 0)
"""The time in the shop; fixed, so that an episode gives the same results whenever it runs."""

# name, price in cents, stock, units sold in each of the last eight weeks
PRODUCTS = [
    ("green tea", 450, 40, [10, 12, 11, 13, 12, 14, 13, 15]),
    ("black tea", 390, 25, [20, 19, 21, 20, 22, 21, 20, 21]),
    ("coffee beans", 1290, 6, [4, 6, 8, 10, 12, 14, 16, 18]),
    ("teapot", 2450, 3, [1, 0, 1, 1, 0, 1, 0, 1]),
    ("milk frother", 1990, 0, [2, 1, 2, 2, 1, 2, 1, 2]),
]
CUSTOMERS = [("Ada Lovelace", "ada@example.com"), ("Alan Turing", "alan@example.com")]


class Table(DeclarativeBase):
    pass


class Product(Table):
    __tablename__ = "products"
    __table_args__ = (CheckConstraint("stock >= 0"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    cents: Mapped[int]
    stock: Mapped[int]


class Sale(Table):
    __tablename__ = "sales"

    id: Mapped[int] = mapped_column(primary_key=True)
    product_id: Mapped[int] = mapped_column(ForeignKey("products.id"))
    week: Mapped[int]
    units: Mapped[int]


class Customer(Table):
    __tablename__ = "customers"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    email: Mapped[str] = mapped_column(unique=True)


class Order(Table):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey("customers.id"))
    placed_at: Mapped[datetime]
    status: Mapped[str] = mapped_column(default="open")
    lines: Mapped[list["Line"]] = relationship(order_by="Line.id")


class Line(Table):
    __tablename__ = "lines"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))
    product_id: Mapped[int] = mapped_column(ForeignKey("products.id"))
    count: Mapped[int]
    cents: Mapped[int]
    """Price of one, when it was ordered."""


@dataclass
class Database:
    """The database of this episode; made when it is first used."""

    _engine: Engine | None = None

    def session(self) -> Session:
        """A session; use it as `with database.session() as session, session.begin():`."""
        if self._engine is None:
            self.reset()
        return Session(self._engine)

    def reset(self) -> None:
        """Start with a new database file."""
        if self._engine is not None:
            self._engine.dispose()
        file = Path(tempfile.mkdtemp(prefix="shop-")) / "shop.db"
        self._engine = create_engine(f"sqlite:///{file}")
        Table.metadata.create_all(self._engine)
        with Session(self._engine) as session, session.begin():
            session.add_all(Customer(name=name, email=email) for name, email in CUSTOMERS)
            for number, (name, cents, stock, sold) in enumerate(PRODUCTS, start=1):
                session.add(Product(id=number, name=name, cents=cents, stock=stock))
                session.add_all(Sale(product_id=number, week=week, units=units) for week, units in enumerate(sold))
            session.add(Order(id=1, customer_id=2, placed_at=NOW, lines=[Line(product_id=4, count=1, cents=2450)]))


database = Database()
