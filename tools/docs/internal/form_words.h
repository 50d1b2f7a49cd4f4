// The forms of parallelism: a mesh each that shows it, and what no program can say.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "weft/plan/mesh.h"

namespace weft::docs::internal {

extern const char* const kForms;            // docs/parallelism.md up to the table
extern const char* const kAfterwardsForms;  // the end of the page

struct Form {
  const char* name;  // "zero-2"; its picture is pictures/parallel-NAME.svg
  const char* title;
  std::vector<plan::Axis> mesh;
  int zero;  // over fsdp: the ZeRO stage
  const char* what;
  const char* source;
  const char* holds;    // of weights, gradients, optimizer state and activations, by rank
  const char* travels;  // elements that a rank sends in a step
  const char* when;     // to take it
  const char* header;   // below weft/parallel
};

std::span<const Form> forms();

// Who has what: four layers (two with the experts' columns), as a grid with rows of one layer each.
enum class Cell { kNone, kFetched, kKept };
struct Grid {
  std::string title;
  int rows, columns;
  std::vector<Cell> cells;  // row by row
};

// Of the rank: its share of the batch (samples by positions), then of weights, gradients and
// optimizer state (layers by features).
std::vector<Grid> grids_of(const Form& form, const plan::MeshLayout& mesh, int rank);

}  // namespace weft::docs::internal
