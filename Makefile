# The steps themselves are functions of .ci/run: what passes here passes there.

.DEFAULT_GOAL := all
CI := bash .ci/run

.PHONY: all
all: lint test ## lint and test (the default)

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{printf "%-12s %s\n", $$1, $$2}'

.PHONY: build
build: ## bin/limpet, static
	CGO_ENABLED=0 go build -trimpath -o bin/limpet ./cmd/limpet

.PHONY: fmt
fmt: ## format all Go files
	gofmt -l -w $$(git ls-files '*.go' ':!:**/testdata/**')

.PHONY: lint
lint: ## format, vet, staticcheck, golangci-lint
	$(CI) fmt vet staticcheck lint

.PHONY: test
test: ## all tests, whole, without the race detector
	go test ./... ./.ci/readme

.PHONY: race
race: ## all tests, short, with the race detector and invariants
	$(CI) race

.PHONY: examples
examples: ## build the examples and run their tests
	$(CI) examples

.PHONY: readme
readme: ## do what README.md says, in a fresh clone of what is committed
	$(CI) readme

.PHONY: spec
spec: ## which rules of the specification have no test yet
	$(CI) spec

.PHONY: fuzz
fuzz: ## each fuzz test for a while (LIMPET_FUZZTIME=10s)
	$(CI) fuzz

.PHONY: vfscheck
vfscheck: ## the check of the SQLite VFS for long (LIMPET_TEST_SCALE=100)
	LIMPET_TEST_SCALE=$${LIMPET_TEST_SCALE:-100} go test -count=1 -timeout=0 -v ./internal/store/vfs

.PHONY: crash
crash: ## the store's tests, crashes among them, for long (LIMPET_TEST_SCALE=100)
	LIMPET_TEST_SCALE=$${LIMPET_TEST_SCALE:-100} go test -count=1 -timeout=0 -v ./internal/store

.PHONY: torture
torture: ## the long form of everything: many hours
	$(CI) version modules fmt vet build staticcheck lint spec readme
	LIMPET_TEST_SCALE=100 go test -count=1 -timeout=0 ./...
	LIMPET_TEST_SHORT=0 LIMPET_TEST_COUNT=5 LIMPET_TEST_TIMEOUT=0 $(CI) race
	LIMPET_FUZZTIME=5m $(CI) fuzz
	go run ./bench/promise -calls 1000000

.PHONY: ci
ci: ## exactly what must pass before a change lands
	$(CI)

.PHONY: clean
clean: ## what builds and runs leave behind here
	rm -rf bin .limpet
