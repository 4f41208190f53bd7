# weft for people: each target installs what is missing, builds, and does its job. CMake does the work.
#
#   make            build the library and the command (build/weft)
#   make demo       build and run the main job on this machine
#   make test       build and run the tests
#   make soak       the tests with the full repetition counts (long)
#   make bench      measure, beside the peers that are installed
#   make install    PREFIX=/usr/local, honours DESTDIR
#   make package    a .deb and a tarball, into dist/
#   make wheel      the Python package, with the library and the command inside, into dist/
#   make clean
BUILD  := build
PREFIX ?= /usr/local
JOBS   := $(shell nproc 2>/dev/null || echo 2)

.PHONY: all build setup python demo testable test soak bench install package wheel clean
all: build

setup:
	@scripts/setup.sh build

python:
	@scripts/setup.sh python

# Where no driver loads GPU kernels, what only looks at this machine does without them: they take minutes to compile.
# The file in the build folder remembers that, and FORGET brings them back: -U drops a setting, the default decides again.
LEAN   := $(if $(shell { ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | grep libcuda.so.1),,OFF)
FORGET  = $(if $(wildcard $(BUILD)/without-kernels),-UWEFT_CUDA -UWEFT_CUDA_KERNELS)

build: setup
	@cmake --preset $(if $(CI),ci,release) $(FORGET) $(CMAKE_FLAGS) >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log $(BUILD)/without-kernels
	@cmake --build $(BUILD) -j$(JOBS) $(if $(V),,-- --no-print-directory -s)
	@echo "built: $(BUILD)/weft"

# Only the command is built, and nothing for GPUs where no driver is (DEMO_CUDA=ON or OFF decides otherwise).
DEMO_CUDA ?= $(LEAN)
demo: setup
	@cmake --preset release $(if $(DEMO_CUDA),-DWEFT_CUDA=$(DEMO_CUDA)) $(CMAKE_FLAGS) >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log
	@$(if $(filter OFF,$(DEMO_CUDA)),touch $(BUILD)/without-kernels,true)
	@cmake --build $(BUILD) -j$(JOBS) --target weft_demo $(if $(V),,-- --no-print-directory -s)
	@scripts/demo.sh $(BUILD)/weft demo-out

# The tests of GPUs run on a fake one where there is none, and that needs no kernels (TEST_KERNELS=ON compiles them). What is
# built with kernels stays so.
TEST_KERNELS ?= $(if $(CI),,$(if $(wildcard $(BUILD)/without-kernels)$(if $(wildcard $(BUILD)/CMakeCache.txt),,fresh),$(LEAN)))
testable: setup
	@$(if $(filter OFF,$(TEST_KERNELS)),echo "no NVIDIA driver here: no GPU kernels are compiled (TEST_KERNELS=ON compiles them)",true)
	@cmake --preset $(if $(CI),ci,release) $(FORGET) $(if $(TEST_KERNELS),-DWEFT_CUDA_KERNELS=$(TEST_KERNELS)) $(CMAKE_FLAGS) >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log $(BUILD)/without-kernels
	@$(if $(filter OFF,$(TEST_KERNELS)),touch $(BUILD)/without-kernels,true)
	@cmake --build $(BUILD) -j$(JOBS) $(if $(V),,-- --no-print-directory -s)

# Two at a time where there are two cores: most have several ranks each.
TEST_JOBS ?= $(if $(filter 1,$(JOBS)),1,2)
test: testable python
	@ctest --test-dir $(BUILD) --output-on-failure -j$(TEST_JOBS)

soak: testable python
	@WEFT_SOAK=1 ctest --test-dir $(BUILD) --output-on-failure --timeout 7200

bench:
	@scripts/setup.sh build bench
	@$(MAKE) --no-print-directory build
	@scripts/bench.sh $(BUILD)/weft

install: build
	@cmake --install $(BUILD) --prefix $(PREFIX)

wheel: setup
	@mkdir -p dist
	@python3 -m pip wheel -q --no-deps --no-build-isolation -w dist .
	@ls dist/weft-*.whl

package: build
	@mkdir -p dist
	@cpack --config $(BUILD)/CPackConfig.cmake -B dist >$(BUILD)/package.log || { cat $(BUILD)/package.log; exit 1; }
	@rm -rf dist/_CPack_Packages
	@ls dist/weft*.deb dist/weft*.tar.gz

clean:
	@rm -rf $(BUILD) build-*/ demo-out dist
