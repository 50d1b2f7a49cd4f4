// A program around a training loop.
#include <torch/torch.h>
#include <weft/weft.h>

#include <optional>

int main() {
  // BLOCK
}
