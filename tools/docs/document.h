// The pages on all collective algorithms, on pipeline schedules and on the forms of parallelism,
// docs/algorithms.md, docs/pipelines.md and docs/parallelism.md, with their pictures, made from the
// schedules and meshes themselves.
#pragma once

#include <string>
#include <vector>

namespace weft::docs {

// A file below docs/.
struct File {
  std::string path;  // "algorithms.md", "pictures/schedule-ring.svg"
  std::string text;
};

// The collectives' page and pictures; the same on every machine. Takes some seconds: it simulates
// every algorithm at several sizes.
std::vector<File> algorithms();

// The pipelines'.
std::vector<File> pipelines();

// The forms': who holds and computes what.
std::vector<File> forms();

}  // namespace weft::docs
