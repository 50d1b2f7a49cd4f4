// weft::Trainer: train::Trainer with all components of this build.
#pragma once

#include <utility>

#include "weft/components/components.h"
#include "weft/train/trainer.h"

namespace weft::components {

class Trainer : public train::Trainer {
 public:
  // As train::Trainer. Sets the components of the options.
  Trainer(train::Task task, train::Options options, Group world)
      : train::Trainer(std::move(task), with_all(std::move(options)), std::move(world)) {}
  Trainer(const Config& config, Group world, train::TrainerOptions options)
      : train::Trainer(config, std::move(world), with_all(std::move(options))) {}

 private:
  template <class Options>
  static Options with_all(Options options) {
    options.components = built();
    return options;
  }
};

}  // namespace weft::components
