"""People at the table: a person takes a seat of a world in the browser, policies take the others.

`game` is the game itself, without a clock and without a network; `session` adds time and people; `server` hands out the
page and listens to it; `results` keeps every episode, to be replayed to the bit.
"""
