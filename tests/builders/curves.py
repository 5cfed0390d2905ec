"""A measured curve of two seeds, as `protocol train` writes it."""

TABLE = """method,h,islands,seed,step,tokens,train_loss,loss
DiLoCo,30,4,0,30,15360,3.0,2.9
DiLoCo,30,4,0,60,30720,2.0,1.9
DiLoCo,30,4,1,30,15360,3.2,2.9
DiLoCo,30,4,1,60,30720,2.4,1.9
Broken,30,4,0,30,15360,nan,nan
"""
