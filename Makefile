# The commands of the course; each is python notebooks/course COMMAND, which works without make too (on Windows: py notebooks/course lab).
PYTHON ?= python3
COURSE = $(PYTHON) notebooks/course
export PIP_ARGS

.PHONY: help lab test test-all power test-gpu compare bench plots setup doctor notebooks lint docs bench-sim

help:       ; @$(COURSE) help
lab:        ; @$(COURSE) lab $(LAB_ARGS)
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
