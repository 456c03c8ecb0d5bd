"""A shop: goods to look for, a cart, coupons, orders that can be cancelled, reviews."""

import random
from typing import Any

from sites.layout import button_form, page, select, table, text_input
from sites.serving import Refused, Request, Response, escape, redirect
from sites.state import State

HOST = "shop.test"
SCHEMA = """
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT NOT NULL, category TEXT NOT NULL, price INTEGER NOT NULL,
  stock INTEGER NOT NULL CHECK (stock >= 0), rating REAL NOT NULL);
CREATE TABLE cart (product INTEGER PRIMARY KEY REFERENCES products (id), count INTEGER NOT NULL CHECK (count > 0));
CREATE TABLE coupons (code TEXT PRIMARY KEY, percent INTEGER NOT NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT NOT NULL, name TEXT NOT NULL, street TEXT NOT NULL,
  city TEXT NOT NULL, shipping TEXT NOT NULL, coupon TEXT NOT NULL, total INTEGER NOT NULL);
CREATE TABLE lines (order_id INTEGER REFERENCES orders (id), product INTEGER REFERENCES products (id),
  count INTEGER NOT NULL, PRIMARY KEY (order_id, product));
CREATE TABLE reviews (product INTEGER PRIMARY KEY REFERENCES products (id), stars INTEGER NOT NULL, text TEXT NOT NULL);
"""
SHIPPING = {"standard": 490, "express": 1290, "pickup": 0}
CATEGORIES = {
    "Kitchen": ("kettle", "toaster", "pan", "knife", "scale", "blender"),
    "Garden": ("spade", "hose", "rake", "lantern", "bench", "planter"),
    "Office": ("lamp", "chair", "notebook", "stapler", "shelf", "keyboard"),
    "Travel": ("backpack", "bottle", "tent", "pillow", "adapter", "suitcase"),
}
MAKERS = ("Alder", "Birch", "Cedar", "Hazel", "Maple", "Rowan")
LINKS = {"Home": "/", "Cart": "/cart", "Orders": "/orders"}


def money(cents: int) -> str:
    return f"{cents / 100:.2f} EUR"


def make(seed: int) -> State:
    """Return the shop as it is at the beginning of an episode."""
    chance = random.Random(f"shop {seed}")
    products, number = [], 0
    for category, things in CATEGORIES.items():
        for thing in things:
            for maker in chance.sample(MAKERS, 3):
                number += 1
                products.append({
                    "id": number, "name": f"{maker} {thing}", "category": category,
                    "price": chance.randrange(500, 20000, 10), "stock": chance.choice((0, 2, 5, 9, 14)),
                    "rating": chance.randrange(20, 51) / 10,
                })  # fmt: skip
    state = State(SCHEMA, {"products": products, "coupons": [{"code": "SPRING10", "percent": 10}]})
    for order in range(1, 5):
        bought = chance.sample(products, 2)
        total = sum(int(each["price"]) for each in bought) + SHIPPING["standard"]
        state.insert("orders", id=order, status="delivered" if order < 3 else "open", name="Robin Field",
                     street="Mill Lane 3", city="Oakham", shipping="standard", coupon="", total=total)  # fmt: skip
        for each in bought:
            state.insert("lines", order_id=order, product=each["id"], count=1)
    return state


class Shop:
    """The shop's pages over its state. What pages can do, graders do with the same functions."""

    def __init__(self, state: State) -> None:
        self.state = state

    # what can be done

    def add(self, product: int, count: int) -> None:
        """Put something into the cart."""
        known = self._product(product)
        row = self.state.row("SELECT count FROM cart WHERE product = ?", product)
        wanted = count + (row["count"] if row else 0)
        if count < 1 or wanted > known["stock"]:
            raise Refused(f"{known['name']}: {known['stock']} in stock")
        self.state.run("INSERT OR REPLACE INTO cart VALUES (?, ?)", product, wanted)

    def set_count(self, product: int, count: int) -> None:
        """Change how many of something are in the cart; 0 takes it out."""
        known = self._product(product)
        if not 0 <= count <= known["stock"]:
            raise Refused(f"{known['name']}: {known['stock']} in stock")
        self.state.run("DELETE FROM cart WHERE product = ?", product)
        if count:
            self.state.insert("cart", product=product, count=count)

    def order(self, name: str, street: str, city: str, shipping: str, coupon: str = "") -> int:
        """Order what is in the cart."""
        lines = self._cart()
        if not lines:
            raise Refused("The cart is empty.")
        if not (name.strip() and street.strip() and city.strip()):
            raise Refused("Name, street and city are needed.")
        if shipping not in SHIPPING:
            raise Refused("Choose how it is shipped.")
        found = self.state.row("SELECT * FROM coupons WHERE code = ?", coupon.strip().upper()) if coupon else None
        if coupon.strip() and found is None:
            raise Refused(f"There is no coupon {coupon}.")
        goods = sum(each["price"] * each["count"] for each in lines)
        total = goods - goods * (found["percent"] if found else 0) // 100 + SHIPPING[shipping]
        number = self.state.insert(
            "orders", status="open", name=name.strip(), street=street.strip(), city=city.strip(), shipping=shipping,
            coupon=found["code"] if found else "", total=total,
        )  # fmt: skip
        for each in lines:
            self.state.insert("lines", order_id=number, product=each["product"], count=each["count"])
            self.state.run("UPDATE products SET stock = stock - ? WHERE id = ?", each["count"], each["product"])
        self.state.run("DELETE FROM cart")
        return number

    def cancel(self, order: int) -> None:
        """Cancel an order that is still open."""
        if not self.state.run("UPDATE orders SET status = 'cancelled' WHERE id = ? AND status = 'open'", order):
            raise Refused(f"Order {order} cannot be cancelled.")
        for each in self.state.rows("SELECT product, count FROM lines WHERE order_id = ?", order):
            self.state.run("UPDATE products SET stock = stock + ? WHERE id = ?", each["count"], each["product"])

    def review(self, product: int, stars: int, text: str) -> None:
        """Write a review, or another one in its place."""
        self._product(product)
        if not 1 <= stars <= 5:
            raise Refused("Give 1 to 5 stars.")
        self.state.run("INSERT OR REPLACE INTO reviews VALUES (?, ?, ?)", product, stars, text.strip())

    # pages

    def __call__(self, request: Request) -> Response:
        parts = [each for each in request.path.split("/") if each]
        if request.method == "POST":
            return self._change(parts, request.form)
        if not parts:
            return self._list(request.query)
        if parts[0] == "product" and len(parts) == 2:
            return self._show(_number(parts[1]))
        if parts[0] == "cart":
            return self._show_cart()
        if parts[0] == "orders":
            return self._show_order(_number(parts[1])) if len(parts) == 2 else self._orders()
        return Response("<h1>404: there is no such page</h1>", 404)

    def _change(self, parts: list[str], form: Any) -> Response:
        what = "/".join(parts)
        if what == "cart/add":
            self.add(_number(form.get("product")), _number(form.get("count", "1")))
            return redirect("/cart")
        if what == "cart/set":
            self.set_count(_number(form.get("product")), _number(form.get("count")))
            return redirect("/cart")
        if what == "checkout":
            names = ("name", "street", "city", "shipping", "coupon")
            return redirect(f"/orders/{self.order(*(form.get(name, '') for name in names))}")
        if what == "orders/cancel":
            self.cancel(_number(form.get("order")))
            return redirect(f"/orders/{_number(form.get('order'))}")
        if what == "review":
            self.review(_number(form.get("product")), _number(form.get("stars")), form.get("text", ""))
            return redirect(f"/product/{_number(form.get('product'))}")
        return Response("<h1>404: there is no such page</h1>", 404)

    def _list(self, query: Any) -> Response:
        words, category, order = query.get("q", ""), query.get("category", ""), query.get("sort", "name")
        orders = {"name": "name", "cheapest": "price", "dearest": "price DESC", "best rated": "rating DESC"}
        found = self.state.rows(
            "SELECT * FROM products WHERE instr(lower(name), lower(?)) AND ? IN ('', category) "
            f"ORDER BY {orders.get(order, 'name')}, id", words, category
        )  # fmt: skip
        options = [("", "All"), *((each, each) for each in CATEGORIES)]
        form = (
            f'<form><input type="hidden" name="q" value="{escape(words)}">'
            f"{select('category', 'Category', options, category)}"
            f"{select('sort', 'Sort by', [(each, each) for each in orders], order)}<button>Show</button></form>"
        )
        cards = "".join(
            f'<div class="card"><a href="/product/{each["id"]}">{escape(each["name"])}</a><br>{money(each["price"])}'
            f'<br><span class="muted">{each["rating"]} stars, {each["stock"] or "not"} in stock</span></div>'
            for each in found
        )
        return page("Shop", "Products", f"{form}<p>{len(found)} products</p><div class=grid>{cards}</div>", LINKS, "/")

    def _show(self, number: int) -> Response:
        each = self._product(number)
        review = self.state.row("SELECT * FROM reviews WHERE product = ?", number)
        said = (
            f'<p class="note">{review["stars"]} stars: {escape(review["text"])}</p>' if review else "<p>None yet.</p>"
        )
        stars = [(str(count), str(count)) for count in range(5, 0, -1)]
        buy = (
            f'<form method="post" action="/cart/add"><input type="hidden" name="product" value="{number}">'
            f'{text_input("count", "Count", "1", "number")}<button>Add to cart</button></form>'
            if each["stock"] else "<p>Not in stock.</p>"
        )  # fmt: skip
        body = (
            f"<p>{money(each['price'])}, {each['category']}, {each['rating']} stars, {each['stock']} in stock</p>{buy}"
            f'<h2>Your review</h2>{said}<form method="post" action="/review"><input type="hidden" name="product" '
            f'value="{number}">{select("stars", "Stars", stars)}<label>Text <textarea name="text"></textarea></label>'
            "<button>Send review</button></form>"
        )
        return page("Shop", each["name"], body, LINKS, "/")

    def _show_cart(self) -> Response:
        lines = self._cart()
        if not lines:
            return page("Shop", "Cart", "<p>The cart is empty.</p>", LINKS, "/")
        rows = []
        for each in lines:
            change = (
                f'<form class="inline" method="post" action="/cart/set"><input type="hidden" name="product" '
                f'value="{each["product"]}"><input name="count" type="number" '
                f'aria-label="Count of {escape(each["name"])}" value="{each["count"]}">'
                '<button class="quiet">Change</button></form>'
            )
            remove = button_form("/cart/set", "Remove", product=each["product"], count=0)
            rows.append((escape(each["name"]), money(each["price"]), change, remove))
        ways = [(name, f"{name} ({money(price)})") for name, price in SHIPPING.items()]
        checkout = (
            f'<h2>Checkout</h2><form method="post" action="/checkout">{text_input("name", "Name")}'
            f"{text_input('street', 'Street')}{text_input('city', 'City')}{select('shipping', 'Shipping', ways)}"
            f"{text_input('coupon', 'Coupon')}<button>Place order</button></form>"
        )
        return page("Shop", "Cart", table(("Product", "Price", "Count", ""), rows) + checkout, LINKS, "/")

    def _orders(self) -> Response:
        rows = [
            (f'<a href="/orders/{each["id"]}">Order {each["id"]}</a>', each["status"], money(each["total"]))
            for each in self.state.rows("SELECT * FROM orders ORDER BY id DESC")
        ]
        return page("Shop", "Orders", table(("Order", "Status", "Total"), rows), LINKS, "/")

    def _show_order(self, number: int) -> Response:
        order = self.state.row("SELECT * FROM orders WHERE id = ?", number)
        if order is None:
            raise Refused(f"There is no order {number}.")
        lines = self.state.rows(
            "SELECT name, count FROM lines JOIN products ON product = products.id WHERE order_id = ?", number
        )
        cancel = button_form("/orders/cancel", "Cancel order", order=number) if order["status"] == "open" else ""
        body = (
            f"<p>Status: {order['status']}. Total: {money(order['total'])}, {order['shipping']}.</p>"
            f"<p>To {escape(order['name'])}, {escape(order['street'])}, {escape(order['city'])}</p>"
            + table(("Product", "Count"), [(escape(each["name"]), str(each["count"])) for each in lines])
            + cancel
        )
        return page("Shop", f"Order {number}", body, LINKS, "/")

    def _cart(self) -> list[dict[str, Any]]:
        return self.state.rows(
            "SELECT product, count, name, price FROM cart JOIN products ON product = products.id ORDER BY product"
        )

    def _product(self, number: int) -> dict[str, Any]:
        found = self.state.row("SELECT * FROM products WHERE id = ?", number)
        if found is None:
            raise Refused("There is no such product.")
        return found


def _number(text: Any) -> int:
    try:
        return int(str(text))
    except ValueError:
        raise Refused("That is no number.") from None
