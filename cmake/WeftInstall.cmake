# What `cmake --install` installs beside the libraries of the modules (WeftModule): the public headers, the target weft::weft,
# the package files and the command.
include(CMakePackageConfigHelpers)

# The public headers: weft/weft.h, weft/layers.h, weft/models.h and all that these include. Every other header is internal and not installed.
set(weft_public_headers
  weft/weft.h weft/layers.h weft/models.h  # include these
  # errors, configuration, element types
  weft/base/config.h weft/base/dtype.h weft/base/error.h
  # ranks, groups, collectives
  weft/comm/backend.h weft/comm/environment.h weft/comm/group.h weft/comm/init.h
  weft/comm/replicate.h weft/parallel/mesh/mesh.h weft/plan/mesh.h
  # data parallelism and ZeRO, their update rules and codecs
  weft/compress/spec.h weft/engine/block.h weft/engine/data_parallel.h weft/engine/optimizer.h
  weft/engine/sharded.h weft/kernels/update.h weft/optim/update_rule.h
  # every parallelism at once
  weft/parallel/compose/loss_scale.h weft/parallel/compose/model.h weft/parallel/compose/modules.h
  weft/parallel/compose/parallelize.h weft/parallel/compose/plan.h
  weft/parallel/pipeline/pipeline.h weft/parallel/recompute/recompute.h
  weft/schedule/pipeline/pipeline.h
  # layers over ranks
  weft/parallel/batch_norm/sync_batch_norm.h weft/parallel/context/context_parallel.h
  weft/parallel/context/layout.h weft/parallel/experts/context.h weft/parallel/experts/dispatch.h
  weft/parallel/experts/mixture.h weft/parallel/experts/router.h weft/parallel/tensor/attention.h
  weft/parallel/tensor/collectives.h weft/parallel/tensor/context.h weft/parallel/tensor/conv.h
  weft/parallel/tensor/dropout.h weft/parallel/tensor/linear.h weft/parallel/tensor/norm.h
  weft/parallel/tensor/vocabulary.h
  # reference models
  weft/models/gpt.h weft/models/gpt_blocks.h weft/models/huggingface.h weft/models/lstm.h
  weft/models/vision/mixer.h weft/models/vision/resnet.h
  weft/models/vision/vit.h
  # training runs, checkpoints
  weft/checkpoint/checkpoint.h weft/checkpoint/reader.h weft/checkpoint/safetensors.h
  weft/checkpoint/sharded.h weft/checkpoint/slice.h weft/observe/progress.h weft/train/trainer.h
  weft/train/options.h weft/train/task.h weft/train/dataset.h
  weft/data/source.h weft/data/sampler.h weft/optim/learning_rate.h
  # collectives as data: usable without libtorch, as weft::schedule
  weft/schedule/schedule.h weft/schedule/topology.h
)
if(NOT WEFT_TORCH)
  set(weft_public_headers weft/schedule/schedule.h weft/schedule/topology.h)
endif()
foreach(header IN LISTS weft_public_headers)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION include/${folder} COMPONENT devel)
endforeach()

install(TARGETS weft_umbrella EXPORT weftTargets)

set(package_dir lib/cmake/weft)
get_property(WEFT_TORCH_MODULES GLOBAL PROPERTY WEFT_TORCH_MODULES)
string(REGEX MATCH "^[0-9]+[.][0-9]+" WEFT_TORCH_MINOR "${WEFT_TORCH_VERSION}")
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/weftConfig.cmake.in ${CMAKE_BINARY_DIR}/weftConfig.cmake
                              INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/weftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/weftConfig.cmake ${CMAKE_BINARY_DIR}/weftConfigVersion.cmake ${CMAKE_CURRENT_LIST_DIR}/WeftTorch.cmake
        DESTINATION ${package_dir} COMPONENT devel)
install(EXPORT weftTargets NAMESPACE weft:: DESTINATION ${package_dir} COMPONENT devel)

if(TARGET weft)
  set_target_properties(weft weft_bench PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)  # libtorch stays where it is
  install(TARGETS weft weft_bench RUNTIME DESTINATION bin COMPONENT runtime)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/recipes DESTINATION share/weft COMPONENT runtime OPTIONAL)
endif()
