# The commands of the course; each is python notebooks/course COMMAND, which works without make too (on Windows: py notebooks/course lab).
PYTHON ?= python3
COURSE = $(PYTHON) notebooks/course
export PIP_ARGS COMPILERS

COMMANDS = help lab progress reset test test-all power test-gpu compare bench plots setup doctor notebooks lint docs bench-sim
.PHONY: $(COMMANDS)

# Without this, `make power ex05_3` would judge all exercises, and then complain about its second word.
STRAY = $(filter-out $(COMMANDS),$(MAKECMDGOALS))
# Without this, `make lab PORT=8899` would ignore its variable.
TAKEN = PYTHON PIP_ARGS COMPILERS LAB_ARGS TEST_ARGS EXERCISES COMPARE_ARGS BENCH_ARGS LESSONS DOCS
UNKNOWN = $(filter-out $(TAKEN) -%,$(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name))))
$(if $(strip $(UNKNOWN)),$(error make does not take $(strip $(UNKNOWN))=. Its variables are $(TAKEN); make help shows them))
VARIABLES = lab=LAB_ARGS test=TEST_ARGS test-all=TEST_ARGS power=EXERCISES test-gpu=TEST_ARGS compare=COMPARE_ARGS bench=BENCH_ARGS notebooks=LESSONS docs=DOCS
FIRST = $(firstword $(MAKECMDGOALS))
VARIABLE = $(patsubst $(FIRST)=%,%,$(filter $(FIRST)=%,$(VARIABLES)))
MEANT = $(if $(VARIABLE),. An argument is given in a variable: make $(FIRST) $(VARIABLE)="$(STRAY)")
$(if $(STRAY),$(error make does not take $(STRAY). make help lists its commands$(MEANT)))

help:       ; @$(COURSE) help --make
lab:        ; @$(COURSE) lab $(LAB_ARGS)
progress:   ; @$(COURSE) progress
reset:      ; @$(COURSE) reset
test:       ; @$(COURSE) test $(TEST_ARGS)
test-all:   ; @$(COURSE) test-all $(TEST_ARGS)
power:      ; @$(COURSE) power $(EXERCISES)
test-gpu:   ; @$(COURSE) test-gpu $(TEST_ARGS)
compare:    ; @$(COURSE) compare $(COMPARE_ARGS)
bench:      ; @$(COURSE) bench $(BENCH_ARGS)
plots:      ; @$(COURSE) plots
setup:      ; @$(COURSE) setup
doctor:     ; @$(COURSE) doctor
notebooks:  ; @$(COURSE) build $(LESSONS)
lint:       ; @$(COURSE) lint
docs:       ; @$(COURSE) docs $(DOCS)
bench-sim:  ; @$(COURSE) bench-sim
