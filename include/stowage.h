/* SPDX-License-Identifier: Apache-2.0 */
/* Everything public of libstowage: models, specs and plans, and the backends that execute them.
 * Each header says who owns what and which threads may call. The planner and the simulator are not
 * in the library: a plan comes from the program `stowage`, as a file. */
#ifndef STOWAGE_H
#define STOWAGE_H

#include "core/log.h"
#include "core/status.h"
#include "core/units.h"

#include "models/model.h"
#include "models/safetensors.h"

#include "plan/files/compare.h"
#include "plan/files/plan.h"
#include "plan/files/run_file.h"
#include "plan/job/job.h"
#include "plan/program/decisions.h"
#include "plan/program/demand.h"
#include "plan/program/layout.h"
#include "plan/program/program.h"
#include "plan/spec/cluster.h"
#include "plan/spec/run_spec.h"

#include "backend/backend.h"
#include "backend/comm/comm.h"
#include "backend/executor/executor.h"

#endif
