"""`shoal ui`: a page over a folder of runs, served to this machine only.

The server reads run folders through `shoal.training.catalogue`, hands out JSON and server-sent events, and never
imports JAX: it starts in well under a second, beside a training that has all the memory. The page is plain ES modules
without a build step, and needs no network.

How a request goes: `security.Guard` checks the host, the token and, for a write, the origin; `app.make_app` routes
it to a function of `endpoints`; that function returns plain data through `endpoints.answers.answer`.

Adding a screen
---------------
1. `static/screens/NAME.js` exports `show(place, address, shell)`. It fills the element `place` with what the address
   `#/NAME?key=value` asks for and returns `{close, keys, update}`, each of which may be missing: `close()` lets go of
   streams and observers, `keys` maps a key to `[what it does, function]` for the keyboard and its help, and
   `update(address)` is called instead of a new `show` if only the query changed. `shell` has `title(text)`,
   `go(address)`, `replace(query)` and `toast(text)`.
2. Add a line to `SCREENS` in `static/app.js`: its name, its words in the navigation, its icon.
3. What it asks the server for stands in `endpoints/NAME.py`: functions of a request, listed in `ROUTES` of that file,
   which is named in `GROUPS` of `app.py`. A plain `def` runs in a thread and may read files; read run folders through
   the catalogue alone. A write is a `POST` with a JSON body: the guard refuses it from any other origin.
4. `static/lib` has what screens share: `dom.js` (elements; text is always text, never markup), `format.js` (numbers as
   people read them), `api.js` (requests and streams), `chart.js` (curves with bands), `maps.js` (maps of numbers),
   `parallel.js` (parallel coordinates), `parts.js` (buttons, menus, empty states, copying), `screens.js` (for screens
   of one kind of run: their list, head, and how they follow the run; `kinds.py` says which runs have which). Colours,
   spaces and type are the variables at the top of `style/shoal.css`; a screen's own rules go to `style/NAME.css`,
   linked in `index.html`. No inline script or `style=` attribute: the page's policy forbids both.
5. Drive it in `tests/ui/test_ui_screens.py`: what it shows, what a click does; the fixture makes sure that nothing is
   logged and that no request leaves the machine. `test_ui_looks.py` runs the rules of accessibility over every
   address in its list.
"""
