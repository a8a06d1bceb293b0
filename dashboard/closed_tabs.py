"""A viewer whose tab was closed while something was on its way to it is no error of the dashboard's."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ClosedTabs:
    """ASGI middleware: what fails in a WebSocket after its viewer has left ends it without a word.

    Streamlit reads on then, and takes what it is told for a frame that it does not know.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on, and notice when nothing can be sent any more."""
        has_left = False

        async def send_noting(message: Message) -> None:
            nonlocal has_left
            try:
                await send(message)
            except OSError:
                has_left = True
                raise

        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send_noting)
        except RuntimeError:
            if not has_left:
                raise
