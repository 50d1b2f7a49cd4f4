# weft_module(NAME [DEPS modules…] [TEST_DEPS modules…] [TORCH tensor|nn] [TEST_TORCH nn] [COLD]
#             [INTERNAL] [BUSY_TESTS] [BATCH n] [IN module] [LINK libraries…]
#             [PUBLIC_LINK libraries…] [EXCEPT files…] [ONLY files…] [ALONE suites…])
#
# Makes the library weft_NAME (alias weft::NAME) from the *.cc files of the calling folder and of
# its internal/, the test binary weft_NAME_test from *_test.cc and weft_NAME_bench from *_bench.cc
# (Google Benchmark). Files ending in _main.cc are left to the caller. EXCEPT leaves files out.
# ONLY takes these sources alone, and no tests: for a second library of the folder.
# TEST_DEPS are modules that only the tests and benches link.
#
# TORCH links libtorch and selects the headers to precompile: "tensor" (ATen and c10d) or "nn" (the
# parts of libtorch's C++ API that most files use; <torch/torch.h> would double their cost). Without
# it, these are headers of the standard library.
# TEST_TORCH: the same for the tests and benches, if they need more than the library.
# COLD: compile with less optimization, because the speed of the folder does not matter. TORCH nn
# always does this.
# BUSY_TESTS: the tests, without TORCH, compute for long: they are compiled with optimization.
# INTERNAL: part of the commands only. Not in weft::weft, and not installed.
# ALONE: test suites that run in a process of their own.
# IN: adds the sources to the library of that module, which compiles them together with its own and
# has their DEPS. So libtorch's headers are paid for once.
# BATCH: number of files that are compiled together (WEFT_UNITY). Default: all of the folder.
function(weft_module name)
  cmake_parse_arguments(arg "COLD;INTERNAL;BUSY_TESTS" "TORCH;TEST_TORCH;BATCH;IN"
    "DEPS;TEST_DEPS;LINK;PUBLIC_LINK;EXCEPT;ONLY;ALONE" ${ARGN})
  if(NOT arg_BATCH)
    set(arg_BATCH 0)
  endif()
  if(NOT arg_TEST_TORCH)
    set(arg_TEST_TORCH ${arg_TORCH})
  endif()
  if(arg_ONLY)
    set(sources ${arg_ONLY})
  else()
    file(GLOB sources CONFIGURE_DEPENDS *.cc internal/*.cc)
  endif()
  if(arg_EXCEPT)
    list(TRANSFORM arg_EXCEPT PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
    list(REMOVE_ITEM sources ${arg_EXCEPT})
  endif()
  set(tests ${sources})
  set(benches ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER benches INCLUDE REGEX "_bench\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(test|bench|main)\\.cc$")
  if(arg_IN)
    target_sources(weft_${arg_IN} PRIVATE ${sources})
    set(sources)
    list(APPEND arg_DEPS ${arg_IN})
  endif()
  list(TRANSFORM arg_DEPS PREPEND weft_)
  list(TRANSFORM arg_TEST_DEPS PREPEND weft_)

  if(sources)
    add_library(weft_${name} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(weft_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(weft::${name} ALIAS weft_${name})
  set_target_properties(weft_${name} PROPERTIES EXPORT_NAME ${name} OUTPUT_NAME weft_${name})
  target_include_directories(weft_${name} ${scope} $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                                   $<INSTALL_INTERFACE:include>)
  target_compile_features(weft_${name} ${scope} cxx_std_20)
  target_link_libraries(weft_${name} ${scope} ${arg_DEPS} ${arg_PUBLIC_LINK} Threads::Threads)
  if(sources)
    target_link_libraries(weft_${name} PRIVATE $<BUILD_INTERFACE:weft_warnings> ${arg_LINK})
    weft_compile_together(weft_${name} ${arg_BATCH})
    if(arg_COLD)
      weft_compile_sooner(weft_${name})
    endif()
  endif()
  if(arg_TORCH)
    target_link_libraries(weft_${name} ${scope} weft::torch)
    weft_precompiled(weft_${name} ${arg_TORCH})
    if(NOT arg_INTERNAL)
      set_property(GLOBAL APPEND PROPERTY WEFT_TORCH_MODULES ${name})
    endif()
  else()
    weft_precompiled(weft_${name} std)
  endif()
  if(NOT arg_INTERNAL)
    set_property(GLOBAL APPEND PROPERTY WEFT_MODULES weft_${name})
    set_property(GLOBAL APPEND PROPERTY WEFT_MODULES_${WEFT_COMPONENT} weft_${name})
  endif()
  if(WEFT_INSTALL AND NOT arg_INTERNAL)
    install(TARGETS weft_${name} EXPORT weftTargets ARCHIVE DESTINATION lib COMPONENT devel)
  endif()

  if(WEFT_TESTS AND tests)
    add_executable(weft_${name}_test ${tests})
    target_link_libraries(weft_${name}_test PRIVATE weft_${name} ${arg_TEST_DEPS} weft_warnings
      ${arg_LINK} weft_test_main GTest::gtest GTest::gmock)
    weft_compile_together(weft_${name}_test 0)
    if(arg_BUSY_TESTS)
      weft_compile_sooner(weft_${name}_test)
    elseif(arg_TEST_TORCH)
      weft_test_program(weft_${name}_test ${arg_TEST_TORCH})
    else()
      weft_test_program(weft_${name}_test std)
    endif()
    weft_discover_tests(weft_${name}_test ${arg_ALONE})
  endif()
  if(WEFT_BENCHMARKS AND benches AND benchmark_FOUND)
    add_executable(weft_${name}_bench ${benches})
    target_link_libraries(weft_${name}_bench PRIVATE weft_${name} ${arg_TEST_DEPS} weft_warnings
      ${arg_LINK} benchmark::benchmark benchmark::benchmark_main)
    if(arg_TEST_TORCH)
      weft_precompiled(weft_${name}_bench ${arg_TEST_TORCH})
    endif()
  endif()
endfunction()

# weft_component(NAME folders…): adds the folders of a component, unless its option WEFT_NAME is
# off.
function(weft_component name)
  string(TOUPPER WEFT_${name} option)
  if(${option})
    set(WEFT_COMPONENT ${name})
    foreach(folder IN LISTS ARGN)
      add_subdirectory(${folder})
    endforeach()
  endif()
endfunction()

# Compiles `batch` files of the target together (0: all of them), so that the headers of libtorch
# and the standard library are compiled only once. A file with its own compile options is compiled
# alone. RELOCATABLE (from CMake 4.0 on): paths in these files are relative to the project, so that
# clones share objects through ccache.
function(weft_compile_together target batch)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${WEFT_UNITY}
    UNITY_BUILD_BATCH_SIZE ${batch} UNITY_BUILD_RELOCATABLE ${PROJECT_IS_TOP_LEVEL})
endfunction()

# Reduces the optimization of code whose own speed does not matter. This saves a third of the
# compile time. Only in the build type Release.
function(weft_compile_sooner target)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()

# weft_test_program(TARGET [std|tensor|nn|torch]): compiles a test program without optimization, but
# not the libraries in it. This saves a third of its compile time. The definitions of GoogleTest are
# set for each of them: g++ uses a precompiled header only with the definitions that it was made
# with.
function(weft_test_program target)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${target} PRIVATE -O0)
  endif()
  if(ARGN)
    if(TARGET GTest::gtest)
      target_compile_options(${target}
        PRIVATE $<TARGET_PROPERTY:GTest::gtest,INTERFACE_COMPILE_OPTIONS>)
      target_compile_definitions(${target}
        PRIVATE $<TARGET_PROPERTY:GTest::gtest,INTERFACE_COMPILE_DEFINITIONS>)
    endif()
    weft_precompiled(${target} ${ARGN} TEST)
  endif()
endfunction()

# weft_precompiled(TARGET std|tensor|nn|torch [TEST]): sets the precompiled header of weft_module's
# TORCH ("std": without TORCH), and the job pool. The first target of a kind makes the header; the
# others reuse it. The headers of "std" and "tensor" are made at -O2 and may be used at -O1, too.
# The other way round, g++ 12 crashes: so all targets of "nn" have -O1. TEST: the headers of test
# programs, with those of GoogleTest, made at -O0, which g++ does not mix with other levels.
# "torch", all of libtorch's C++ API, is for test programs as users write them.
function(weft_precompiled target kind)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    return()
  endif()
  set(headers_std <algorithm> <array> <atomic> <charconv> <chrono> <cmath> <condition_variable>
    <cstdint> <cstring> <exception> <filesystem> <fstream> <functional> <limits> <map> <memory>
    <mutex> <numeric> <optional> <set> <span> <sstream> <string> <string_view> <thread> <tuple>
    <unordered_map> <utility> <variant> <vector>)
  set(headers_tensor <ATen/ATen.h> <torch/csrc/distributed/c10d/Backend.hpp>)
  set(headers_nn <torch/utils.h> <torch/nn/cloneable.h> <torch/nn/modules/linear.h>
    <torch/nn/modules/container/sequential.h> <torch/nn/pimpl.h> <torch/optim/adamw.h>
    <torch/optim/sgd.h> <torch/csrc/distributed/c10d/Backend.hpp>)
  set(headers_torch <torch/torch.h>)
  if(NOT headers_${kind})
    message(FATAL_ERROR "${target}: TORCH is tensor, nn or torch, not ${kind}")
  endif()
  if(kind STREQUAL "std" AND NOT WEFT_UNITY)
    return()  # so that a missing include is an error
  endif()
  if(type STREQUAL "EXECUTABLE")
    target_compile_options(${target} PRIVATE -fPIC)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  endif()
  if("TEST" IN_LIST ARGN)
    set(use ${kind}_test)
    if(NOT kind STREQUAL "torch")
      list(APPEND headers_${kind} <gtest/gtest.h> <gmock/gmock.h>)
    endif()
  else()
    set(use ${kind})
    if(kind STREQUAL "nn")
      weft_compile_sooner(${target})  # it spends its time in the kernels of libtorch and weft
    endif()
  endif()
  get_property(maker GLOBAL PROPERTY WEFT_PRECOMPILED_${use})
  if(maker)
    target_precompile_headers(${target} REUSE_FROM ${maker})
  else()
    target_precompile_headers(${target} PRIVATE ${headers_${kind}})
    set_property(GLOBAL PROPERTY WEFT_PRECOMPILED_${use} ${target})
  endif()
  if(NOT kind STREQUAL "std")
    set_target_properties(${target} PROPERTIES JOB_POOL_COMPILE torch_pool)
  endif()
endfunction()

# Of all tests. Threads of OpenMP wait for each other at the end of each loop. On a busy machine
# they would use up their time slices by spinning, and a test would take ten times as long.
set(WEFT_TEST_ENVIRONMENT OMP_WAIT_POLICY=PASSIVE)
if(WEFT_TORCH AND CMAKE_CXX_FLAGS MATCHES "-fsanitize=address")  # libtorch has no such checks
  list(APPEND WEFT_TEST_ENVIRONMENT ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0)
endif()
# Of tests that run Python. `import torch` takes three times as long without compiled modules, and
# the set-up leaves them out.
set(WEFT_PYTHON_CACHE PYTHONPYCACHEPREFIX=${PROJECT_BINARY_DIR}/pycache PYTHONDONTWRITEBYTECODE=)

set(WEFT_TEST_TIMEOUT 300 CACHE STRING "Seconds after which a test suite is ended")

# Adds a ctest entry for each WEFT_SUITES_AT_ONCE test suites, since every entry starts a libtorch
# process: module.Suite, or module.First,Second,Third. The end of a suite's name sets its label, and
# gives it an entry of its own: "Slow" the label slow, "Gpu" the label gpu, "Timing" the label
# timing. A timing suite asserts a time, so it runs while no other test runs. The suites after the
# target also have entries of their own. PROCESSORS: a test that computes counts as two of ctest's
# jobs (weft_test_jobs in tools/test.sh), one that waits as one.
set(WEFT_SUITES_AT_ONCE 6)
function(weft_discover_tests target)
  get_target_property(sources ${target} SOURCES)
  set(suites)
  foreach(source ${sources})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    file(STRINGS ${source} lines REGEX "^(TEST|TEST_F|TEST_P|TYPED_TEST)\\(")
    foreach(line ${lines})
      string(REGEX REPLACE "^[A-Z_]+\\(([A-Za-z0-9_]+),.*" "\\1" suite "${line}")
      list(APPEND suites ${suite})
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES suites)
  string(REGEX REPLACE "^weft_(.*)_test$" "\\1" module ${target})
  set(together)
  foreach(suite ${suites})
    if(suite MATCHES "(Slow|Gpu|Timing)$" OR suite IN_LIST ARGN)
      weft_add_suites(${target} ${module} ${suite})
    else()
      list(APPEND together ${suite})
    endif()
    list(LENGTH together count)
    if(count EQUAL WEFT_SUITES_AT_ONCE)
      weft_add_suites(${target} ${module} ${together})
      set(together)
    endif()
  endforeach()
  if(together)
    weft_add_suites(${target} ${module} ${together})
  endif()
endfunction()

# One ctest entry.
function(weft_add_suites target module)
  list(JOIN ARGN "," name)
  set(patterns)
  foreach(suite ${ARGN})
    list(APPEND patterns ${suite}.* ${suite}/*.* */${suite}.*)
  endforeach()
  list(JOIN patterns ":" filter)
  add_test(NAME ${module}.${name} COMMAND ${target} --gtest_filter=${filter} --gtest_brief=1)
  set(labels ${module})
  if(name MATCHES "Slow(Timing)?$")
    list(APPEND labels slow)
  endif()
  if(name MATCHES "Gpu$")
    list(APPEND labels gpu)
  endif()
  if(name MATCHES "Timing$")
    list(APPEND labels timing)
    set_tests_properties(${module}.${name} PROPERTIES RUN_SERIAL ON)
  endif()
  set_tests_properties(${module}.${name} PROPERTIES LABELS "${labels}"
    ENVIRONMENT "${WEFT_TEST_ENVIRONMENT}" TIMEOUT ${WEFT_TEST_TIMEOUT} PROCESSORS 2)
endfunction()

# Adds one ctest entry for each test function of a Python script, PREFIX.NAME without "test_". A
# name that ends in "_slow" gets the label slow. A class whose name ends in "Timing" asserts a time:
# its tests get the label timing, and run while no other test runs. WAITS: most of their time, so
# more of them run at once. ARGS: of the script, before the test's name.
function(weft_discover_python_tests script prefix)
  cmake_parse_arguments(arg "WAITS" "" "ARGS;LABELS;ENVIRONMENT" ${ARGN})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${script})
  list(APPEND arg_ENVIRONMENT ${WEFT_TEST_ENVIRONMENT} ${WEFT_PYTHON_CACHE})
  file(STRINGS ${script} lines REGEX "^(class |  +def test_)")
  foreach(line ${lines})
    if(line MATCHES "^class ([A-Za-z]+)")
      set(suite ${CMAKE_MATCH_1})
    elseif(line MATCHES "def (test_([A-Za-z0-9_]+))")
      set(name ${prefix}.${CMAKE_MATCH_2})
      add_test(NAME ${name}
        COMMAND ${Python3_EXECUTABLE} ${script} ${arg_ARGS} ${suite}.${CMAKE_MATCH_1})
      set(labels ${arg_LABELS})
      set(limit 120)
      if(name MATCHES "_slow$")
        list(APPEND labels slow)
        set(limit 600)
      endif()
      if(suite MATCHES "Timing$")
        list(APPEND labels timing)
        set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
      endif()
      set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${limit}
        SKIP_RETURN_CODE 77 ENVIRONMENT "${arg_ENVIRONMENT}")
      if(NOT arg_WAITS)
        set_tests_properties(${name} PROPERTIES PROCESSORS 2)
      endif()
    endif()
  endforeach()
endfunction()
