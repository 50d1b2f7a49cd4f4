# Finds libtorch and makes the imported target weft::torch. Used by weft's own build, by an
# installed weft (weftConfig.cmake) and, as a script, by tools/setup.sh:
#
#   cmake -DTorch_DIR=FOLDER -P WeftTorch.cmake   prints "torch VERSION FOLDER" or "problem LINE"
#   cmake -DPYTHON=python3 -P WeftTorch.cmake     the same for the torch of a Python;
#                                                 "problem none" if it has none
#
# find_package(Torch) is not used: with a CUDA wheel it requires the whole CUDA toolkit, and it
# defines global targets (dummy, protobuf::libprotobuf) that break other libraries. weft links only
# libtorch_cpu and libc10. In a CUDA wheel, these two need libcudart and libcupti, which `pip
# install torch` installs beside it.
set(WEFT_OLDEST_TORCH 2.13)

# weft_torch_version(ROOT OUT): the version of the libtorch in the folder ROOT, such as 2.13.0;
# empty if there is none.
function(weft_torch_version root out)
  set(version)
  set(header ${root}/include/torch/headeronly/version.h)
  if(EXISTS ${header})
    file(STRINGS ${header} lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
    list(JOIN numbers "." version)
  elseif(EXISTS ${root}/share/cmake/Torch/TorchConfigVersion.cmake)  # older than 2.9
    file(STRINGS ${root}/share/cmake/Torch/TorchConfigVersion.cmake line
      REGEX "^set\\(PACKAGE_VERSION ")
    string(REGEX MATCH "[0-9.]+" version "${line}")
  endif()
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

# weft_torch_problem(ROOT OUT): one line with the reason why weft cannot link the libtorch in ROOT,
# and a remedy; empty if weft can link it.
function(weft_torch_problem root out)
  set(problem)
  weft_torch_version(${root} version)
  if(NOT version)
    set(problem "${root} has no libtorch: expected include/torch/headeronly/version.h in it")
  elseif(version VERSION_LESS WEFT_OLDEST_TORCH)
    set(problem "torch ${version} in ${root} is too old: weft needs ${WEFT_OLDEST_TORCH} or newer")
  else()
    foreach(library torch_cpu c10)
      if(NOT EXISTS ${root}/lib/lib${library}.so)
        set(problem "${root}/lib/lib${library}.so is missing: install torch ${version} again")
      endif()
    endforeach()
  endif()
  if(NOT problem AND NOT CMAKE_CROSSCOMPILING)
    execute_process(COMMAND ldd ${root}/lib/libtorch_cpu.so OUTPUT_VARIABLE needed ERROR_QUIET)
    string(REGEX MATCHALL "lib[^ \t\n]+ => not found" missing "${needed}")
    if(missing)
      list(TRANSFORM missing REPLACE " => not found" "")
      list(REMOVE_DUPLICATES missing)
      list(JOIN missing ", " missing)
      string(CONCAT problem
        "libtorch_cpu.so in ${root}/lib needs ${missing}, which are not installed: "
        "`pip install torch` installs them")
    endif()
  endif()
  set(${out} "${problem}" PARENT_SCOPE)
endfunction()

# weft_torch_of_python(PYTHON OUT): the torch folder of a Python environment; empty if there is
# none. Does not import torch.
function(weft_torch_of_python python out)
  set(code "import importlib.util as u; s = u.find_spec('torch')"
           "print(s.submodule_search_locations[0] if s else '')")
  execute_process(
    COMMAND ${python} -c "${code}"
    OUTPUT_VARIABLE root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${out} "${root}" PARENT_SCOPE)
endfunction()

# weft_torch_of_dir(DIR OUT): the libtorch folder above DIR, the folder of TorchConfig.cmake. DIR
# can also be a libtorch folder itself.
function(weft_torch_of_dir dir out)
  if(EXISTS ${dir}/TorchConfig.cmake)
    get_filename_component(dir ${dir}/../../.. ABSOLUTE)
  endif()
  set(${out} "${dir}" PARENT_SCOPE)
endfunction()

# weft_find_torch(OUT [VERSION MAJOR.MINOR] [HINT FOLDER]): finds a libtorch folder. If Torch_DIR is
# set (variable, then environment), uses this one; otherwise the first that can be linked of
# CMAKE_PREFIX_PATH, python3 and HINT. Fails if there is none. VERSION excludes all other versions.
function(weft_find_torch out)
  cmake_parse_arguments(arg "" "VERSION;HINT" "" ${ARGN})
  set(asked "${Torch_DIR}")
  if(NOT asked)
    set(asked "$ENV{Torch_DIR}")
  endif()
  if(asked)
    weft_torch_of_dir(${asked} candidates)
  else()
    find_path(WEFT_TORCH_PACKAGE TorchConfig.cmake PATH_SUFFIXES share/cmake/Torch Torch NO_CACHE)
    if(WEFT_TORCH_PACKAGE)
      weft_torch_of_dir(${WEFT_TORCH_PACKAGE} candidates)
    endif()
    weft_torch_of_python(python3 root)
    list(APPEND candidates ${root} ${arg_HINT})
  endif()
  set(problems)
  foreach(root IN LISTS candidates)
    weft_torch_problem(${root} problem)
    weft_torch_version(${root} version)
    if(NOT problem AND arg_VERSION AND NOT version MATCHES "^${arg_VERSION}([.]|$)")
      string(CONCAT problem
        "this weft was built with torch ${arg_VERSION} and cannot be linked with torch ${version} "
        "in ${root}")
    endif()
    if(NOT problem)
      set(${out} "${root}" PARENT_SCOPE)
      return()
    endif()
    string(APPEND problems "\n  ${problem}")
  endforeach()
  if(NOT problems)
    set(problems "\n  no torch in CMAKE_PREFIX_PATH or python3")
  endif()
  message(FATAL_ERROR "weft: no libtorch that can be used:${problems}\n"
    "  Set Torch_DIR to the share/cmake/Torch folder of a libtorch or of a torch wheel, "
    "or install one: pip install torch")
endfunction()

# weft_find_cuda(ROOT INCLUDES CUDART): the CUDA headers and libcudart for the libtorch in ROOT.
# Those that pip installed beside it come first; they have the right version but are incomplete.
# Those of the CUDA toolkit follow.
function(weft_find_cuda root includes cudart)
  file(GLOB libraries ${root}/../nvidia/cu*/lib/libcudart.so.*)
  file(GLOB folders ${root}/../nvidia/cu*/include)
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND)
    list(APPEND libraries CUDA::cudart)
    list(APPEND folders ${CUDAToolkit_INCLUDE_DIRS})
  endif()
  foreach(header cuda_runtime_api.h crt/host_config.h cusparse.h nv/target)
    find_path(found ${header} PATHS ${folders} NO_DEFAULT_PATH NO_CACHE)
    if(NOT found OR NOT libraries)
      message(FATAL_ERROR
        "weft: WEFT_CUDA is on, but there is no ${header}: install the CUDA toolkit, "
        "or pip install nvidia-cuda-crt and nvidia-cuda-cccl beside torch")
    endif()
    unset(found)
  endforeach()
  list(GET libraries 0 library)
  set(${includes} ${folders} PARENT_SCOPE)
  set(${cudart} ${library} PARENT_SCOPE)
endfunction()

# weft_import_torch(ROOT): makes weft::torch from the libtorch in ROOT. With WEFT_CUDA, it also
# links the CUDA libraries.
function(weft_import_torch root)
  if(TARGET weft::torch)
    return()
  endif()
  set(libraries c10 torch_cpu)
  if(WEFT_CUDA)
    if(NOT EXISTS ${root}/lib/libtorch_cuda.so)
      message(FATAL_ERROR
        "weft: WEFT_CUDA is on, but torch in ${root} is a CPU build: install a CUDA build of "
        "torch, or set WEFT_CUDA=OFF")
    endif()
    weft_find_cuda(${root} cuda_includes cudart)
    list(APPEND libraries c10_cuda)
  endif()
  add_library(weft::torch INTERFACE IMPORTED GLOBAL)
  set_target_properties(weft::torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${root}/include;${root}/include/torch/csrc/api/include"
    # The definitions with which the wheel was built.
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO;USE_RPC;USE_TENSORPIPE"
    INTERFACE_COMPILE_FEATURES cxx_std_20)
  foreach(library IN LISTS libraries)
    add_library(weft::torch_${library} SHARED IMPORTED GLOBAL)
    set_target_properties(weft::torch_${library}
      PROPERTIES IMPORTED_LOCATION ${root}/lib/lib${library}.so)
  endforeach()
  if(WEFT_CUDA)
    # Most of weft uses no symbol of libtorch_cuda. Loading the library registers its kernels.
    target_link_libraries(weft::torch
      INTERFACE "-Wl,--push-state,--no-as-needed,${root}/lib/libtorch_cuda.so,--pop-state"
                                                weft::torch_c10_cuda ${cudart})
    set_property(TARGET weft::torch APPEND PROPERTY INTERFACE_INCLUDE_DIRECTORIES ${cuda_includes})
  endif()
  target_link_libraries(weft::torch INTERFACE weft::torch_torch_cpu weft::torch_c10)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  set(root)
  if(PYTHON)
    weft_torch_of_python(${PYTHON} root)
  elseif(Torch_DIR)
    weft_torch_of_dir(${Torch_DIR} root)
  endif()
  set(problem none)
  if(root)
    weft_torch_problem(${root} problem)
    weft_torch_version(${root} version)
  endif()
  if(problem)
    execute_process(COMMAND ${CMAKE_COMMAND} -E echo "problem ${problem}")
  else()
    execute_process(COMMAND ${CMAKE_COMMAND} -E echo "torch ${version} ${root}")
  endif()
endif()
