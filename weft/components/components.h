// The components of this build of weft, and the Trainer that has them.
#pragma once

#include "weft/train/components.h"

namespace weft::components {

// All components that the build has (docs/install.md).
train::Components built();

}  // namespace weft::components
