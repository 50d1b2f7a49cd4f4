# weft_mpi_plugin(openmpi|mpich): builds the plug-in libweft_mpi_<name>.so if that MPI is installed.
# weft itself links no MPI. At run time it loads the plug-in of the MPI that started the process, so
# one program supports both. Sets WEFT_MPIRUN_<name> for the tests.
function(weft_mpi_plugin name)
  if(CMAKE_CROSSCOMPILING)
    message(STATUS "MPI: no ${name} for the machine that is compiled for")
    return()
  endif()
  find_program(WEFT_MPICXX_${name} NAMES mpicxx.${name} mpicxx
    DOC "The compiler wrapper of ${name}")
  mark_as_advanced(WEFT_MPICXX_${name})
  if(NOT WEFT_MPICXX_${name})
    message(STATUS "MPI: no ${name}, so that weft is built without its plug-in")
    return()
  endif()
  if(name STREQUAL "openmpi")
    set(questions --showme:compile --showme:link)
  else()
    set(questions -compile_info -link_info)
  endif()
  set(words)
  foreach(question ${questions})
    execute_process(COMMAND ${WEFT_MPICXX_${name}} ${question} OUTPUT_VARIABLE line
      RESULT_VARIABLE status OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(NOT status EQUAL 0)  # the command mpicxx belongs to the other MPI
      message(STATUS "MPI: no ${name}, so that weft is built without its plug-in")
      return()
    endif()
    separate_arguments(line UNIX_COMMAND "${line}")
    list(APPEND words ${line})
  endforeach()
  set(includes ${words})
  set(folders ${words})
  set(libraries ${words})
  list(FILTER includes INCLUDE REGEX "^-I")
  list(FILTER folders INCLUDE REGEX "^-L")
  # Omits the C++ bindings, which were removed from MPI.
  list(FILTER libraries INCLUDE REGEX "^-l(mpi|mpich)$")
  list(TRANSFORM includes REPLACE "^-I" "")
  list(TRANSFORM folders REPLACE "^-L" "")

  add_library(weft_mpi_${name} MODULE ${PROJECT_SOURCE_DIR}/weft/net/mpi/plugin/plugin.cc)
  target_include_directories(weft_mpi_${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_include_directories(weft_mpi_${name} SYSTEM PRIVATE ${includes})
  target_link_directories(weft_mpi_${name} PRIVATE ${folders})
  target_link_libraries(weft_mpi_${name} PRIVATE ${libraries} weft_warnings)
  target_compile_features(weft_mpi_${name} PRIVATE cxx_std_20)
  target_compile_definitions(weft_mpi_${name} PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  set_target_properties(weft_mpi_${name}
    PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/weft CXX_VISIBILITY_PRESET hidden
                                                    INSTALL_RPATH_USE_LINK_PATH ON)
  if(WEFT_INSTALL)
    set_property(GLOBAL APPEND PROPERTY WEFT_MPI_PLUGINS weft_mpi_${name})
    foreach(component runtime devel)  # loaded by the command and by programs that link weft
      install(TARGETS weft_mpi_${name} LIBRARY DESTINATION lib/weft COMPONENT ${component})
    endforeach()
  endif()
  get_filename_component(folder ${WEFT_MPICXX_${name}} DIRECTORY)
  find_program(WEFT_MPIRUN_${name} NAMES mpirun.${name} mpirun HINTS ${folder}
    DOC "The launcher of ${name}")
  mark_as_advanced(WEFT_MPIRUN_${name})
endfunction()
