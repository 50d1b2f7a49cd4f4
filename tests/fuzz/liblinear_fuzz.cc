// LIBLINEAR's model files.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>

#include "tests/fuzz/fuzz.h"
#include "weft/linear/model/model.h"
#include "weft/linear/model/predict.h"

using weft::Errc;
using weft::fuzz::accepts;
using weft::fuzz::check;

void weft::fuzz::one_input(const std::uint8_t* data, std::size_t size) {
  const int file = ::memfd_create("fuzz", 0);
  check(file >= 0 && ::write(file, data, size) == static_cast<ssize_t>(size),
        "the input can be written to a file");
  accepts({Errc::kCorrupt}, [&] {
    const auto model = weft::linear::read_model("/proc/self/fd/" + std::to_string(file));
    check(model.weights.size() == model.columns.size() * model.outputs(),
          "each column has a weight for each output");
    for (const double weight : model.weights) check(std::isfinite(weight), "weights are finite");
    linear::SparseRows rows;
    std::vector<linear::Entry> row = {{0, 1}, {7, 2}};
    if (model.bias >= 0) row.push_back({linear::kBiasColumn, static_cast<float>(model.bias)});
    rows.add(0, row);
    const auto made = predict(model, rows, model.has_probabilities());
    check(made.labels.size() == 1, "a row has a prediction");
  });
  ::close(file);
}
