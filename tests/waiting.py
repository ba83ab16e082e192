"""Waiting without sleeping: ask again as soon as everybody else had a turn, and give up with words after a while."""

import asyncio
from collections.abc import Awaitable, Callable


async def until(condition: Callable[[], Awaitable[bool]], what: str, limit_s: float = 30.0) -> None:
    try:
        async with asyncio.timeout(limit_s):
            while True:
                if await condition():
                    return
                await asyncio.sleep(0)
    except TimeoutError:
        raise AssertionError(f"not within {limit_s:.0f} s: {what}") from None
