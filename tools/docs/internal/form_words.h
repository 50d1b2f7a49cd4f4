// The forms of parallelism: an example mesh of each, and its description.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "weft/plan/mesh/mesh.h"

namespace weft::docs::internal {

extern const char* const kForms;            // docs/parallelism.md up to the table
extern const char* const kAfterwardsForms;  // the end of the page

struct Form {
  const char* name;  // "zero-2"; its picture is pictures/parallel-NAME.svg
  const char* title;
  std::vector<plan::Axis> mesh;
  int zero;  // ZeRO stage over fsdp
  const char* what;
  const char* source;
  const char* holds;    // part of weights, gradients, state and activations that a rank holds
  const char* travels;  // elements that a rank sends in a step
  const char* when;     // when to use it
  const char* header;   // header, below weft/
};

std::span<const Form> forms();

// The data that a rank has, as a grid with one layer in each row.
enum class Cell { kNone, kFetched, kKept };
struct Grid {
  std::string title;
  int rows, columns;
  std::vector<Cell> cells;  // row by row
};

// The grids of a rank: its share of the batch (samples by positions), then of weights, gradients
// and optimizer state (layers by features).
std::vector<Grid> grids_of(const Form& form, const plan::MeshLayout& mesh, int rank);

}  // namespace weft::docs::internal
