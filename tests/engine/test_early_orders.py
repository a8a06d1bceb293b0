"""Orders that come before anybody takes them."""

from vllm_obs.engine.early_orders import MAX_EARLY_ORDERS, EarlyOrders


def test_orders_are_taken_once_in_their_order() -> None:
    orders = EarlyOrders()
    orders.keep("OPEN", None)
    orders.keep("ADD", 1)
    assert orders.take() == [("OPEN", None), ("ADD", 1)]
    assert orders.take() == []


def test_the_only_order_of_its_kind_outlasts_hundreds_of_others() -> None:
    orders = EarlyOrders()
    orders.keep("OPEN", None)
    for number in range(2 * MAX_EARLY_ORDERS):
        orders.keep("NEWS", number)

    taken = orders.take()
    assert taken[0] == ("OPEN", None)
    assert [payload for _, payload in taken[1:]] == list(range(MAX_EARLY_ORDERS + 1, 2 * MAX_EARLY_ORDERS))


def test_of_kinds_that_each_came_once_the_oldest_gives_way() -> None:
    orders = EarlyOrders()
    for number in range(MAX_EARLY_ORDERS + 1):
        orders.keep(f"KIND {number}", None)
    assert orders.take()[0] == ("KIND 1", None)
